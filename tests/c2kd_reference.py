"""
C2KD from its equations, slowly and in float64: a Llama written out, one row at a time, without padding, batches or hooks. Nothing
of the package is used. `from c2kd_reference import ...`.
"""

import math

import torch


def doubled(module) -> dict[str, torch.Tensor]:
    """The weights of a module by name, in float64, each a leaf that gathers a gradient."""
    return {name: p.detach().double().requires_grad_() for name, p in module.named_parameters()}


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / ((x * x).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turned(x: torch.Tensor, base: float = 10000.0) -> torch.Tensor:
    """Rotary positions: entries i and i + d/2 of position t are turned by t / base^(2i/d). x is (T, heads, d)."""
    half = x.shape[-1] // 2
    angle = torch.arange(len(x)).double()[:, None] * base ** (-torch.arange(half).double() / half)
    cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def llama_states(w: dict[str, torch.Tensor], ids: list[int], heads: int = 2) -> list[torch.Tensor]:
    """H^0 to H^L of one row, each (T, d); H^L is behind the final norm."""
    root = "model." if "model.norm.weight" in w else "backbone."
    x = w.get("item_embeddings.weight", w.get("model.embed_tokens.weight"))[ids]
    states, layer, length = [x], 0, len(ids)
    ahead = torch.ones(length, length).triu(1).bool()
    while (at := f"{root}layers.{layer}.") + "input_layernorm.weight" in w:

        def linear(x, name, at=at):
            return x @ w[f"{at}{name}.weight"].T

        normed = rms_norm(x, w[at + "input_layernorm.weight"])
        q, k, v = (linear(normed, f"self_attn.{name}_proj").view(length, heads, -1) for name in "qkv")
        scores = torch.einsum("ihd,jhd->hij", turned(q), turned(k)) / math.sqrt(q.shape[-1])
        read = torch.einsum("hij,jhd->ihd", scores.masked_fill(ahead, -math.inf).softmax(-1), v).reshape(length, -1)
        x = x + linear(read, "self_attn.o_proj")
        normed = rms_norm(x, w[at + "post_attention_layernorm.weight"])
        gate = linear(normed, "mlp.gate_proj")
        x = x + linear(gate * gate.sigmoid() * linear(normed, "mlp.up_proj"), "mlp.down_proj")
        states.append(x)
        layer += 1
    states[-1] = rms_norm(x, w[f"{root}norm.weight"])
    return states


def head_weight(w: dict[str, torch.Tensor]) -> torch.Tensor:
    return w["head.weight"] if "head.weight" in w else w["lm_head.weight"]


def filtered_states(w: dict[str, torch.Tensor], layer: int, states: torch.Tensor, target: str) -> torch.Tensor:
    """g^l(H), by a linear map or an MLP with an exact GELU; behind the shared norm if `target` is "normed"."""
    at = f"filters.{layer}."
    if at + "weight" in w:
        out = states @ w[at + "weight"].T + w[at + "bias"]
    else:
        inner = states @ w[at + "0.weight"].T + w[at + "0.bias"]
        inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
        out = inner @ w[at + "2.weight"].T + w[at + "2.bias"]
    return rms_norm(out, w["norm.weight"]) if target == "normed" else out


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a @ b) / ((a @ a) * (b @ b)).sqrt()


def reference_loss(args, rows, student, heads, teacher, filters, layers, student_blocks=(), teacher_blocks=()):
    """
    The loss of the global batch.

    Args:
        args: the recipe: names and weights as those of the configuration.
        rows (`list[tuple[list[int], int]]`): ids of each row, and the place of the first that is predicted.
        student, heads, teacher, filters (`dict`): weights in float64.
        layers (`list[int]`): candidate layers.
        student_blocks, teacher_blocks (`list[int]`): layers at the ends of blocks.

    Returns:
        `tuple[torch.Tensor, dict[str, float], list[int]]`: L, the mean of each part over all positions, and the layers chosen.
    """
    task, feature, logit, block_task = [], [], [], []
    chosen = []
    for ids, start in rows:
        own = llama_states(student, ids)
        with torch.no_grad():
            theirs = llama_states(teacher, ids)
        places = range(start - 1, len(ids) - 1)  # position t predicts t + 1
        if args.feature_distillation == "router":
            n = args.student_layer or len(own) - 1
            with torch.no_grad():
                seen = {layer: filtered_states(filters, layer, theirs[layer], args.filter_target) for layer in layers}
                nearness = {
                    layer: sum(cosine(own[n][t], one[t]) for t in places) / len(places) for layer, one in seen.items()
                }
            best = max(layers, key=nearness.__getitem__)
            chosen.append(best)
        for t in places:
            target = ids[t + 1]
            logits = head_weight(student) @ own[-1][t]
            task.append(torch.logsumexp(logits, 0) - logits[target])
            pair = None
            if args.feature_distillation == "router":
                pair = own[n][t], seen[best][t]
            elif args.feature_distillation == "last":
                pair = heads["feature_projection.weight"] @ own[-1][t], theirs[-1][t]
            elif args.feature_distillation == "blocks":
                cost = 0.0
                for number, (mine, other) in enumerate(zip(student_blocks, teacher_blocks, strict=True)):
                    a, b = heads[f"block_projections.{number}.weight"] @ own[mine][t], theirs[other][t]
                    cost = cost + 1 - cosine(a, b) + args.block_norm_weight * ((a - b) @ (a - b)).sqrt()
                feature.append(cost)
                inside = []
                for number, mine in enumerate(student_blocks[:-1]):
                    at = f"block_adapters.{number}."
                    normed = rms_norm(own[mine][t], heads[at + "0.weight"])
                    scores = head_weight(student) @ (heads[at + "1.weight"] @ normed + heads[at + "1.bias"])
                    inside.append(torch.logsumexp(scores, 0) - scores[target])
                block_task.append(sum(inside) / len(inside))
            if pair is not None:
                a, b = pair
                if args.feature_loss == "normalized":
                    a, b = a / (a @ a).sqrt(), b / (b @ b).sqrt()
                    mean = ((a - b) @ (a - b)) / len(a)
                    feature.append(args.feature_alpha * mean + (1 - args.feature_alpha) * (1 - a @ b))
                else:
                    feature.append(((a - b) @ (a - b)) / len(a))
            if args.logit_distillation != "none":
                temperature = args.temperature
                if args.logit_distillation == "cross_head":
                    logits = head_weight(teacher) @ (heads["logit_projection.weight"] @ own[-1][t])
                p = (head_weight(teacher) @ theirs[-1][t] / temperature).softmax(0).detach()
                q = (logits / temperature).softmax(0)
                logit.append(temperature**2 * (p * (p / q).log()).sum())
    parts = {"task": task, "feature": feature, "logit": logit, "block_task": block_task}
    means = {name: sum(values) / len(task) for name, values in parts.items() if values}
    weights = {
        "task": 1.0,
        "feature": args.lambda_feat,
        "logit": args.lambda_logit,
        "block_task": args.lambda_block_task,
    }
    total = sum(weights[name] * value for name, value in means.items())
    if args.lambda_orthogonal:
        w = heads["logit_projection.weight"]
        apart = w.T @ w - torch.eye(w.shape[1]).double()  # d_S < d_T
        means["orthogonal"] = (apart * apart).sum()
        total = total + args.lambda_orthogonal * means["orthogonal"]
    return total, {name: value.item() for name, value in means.items()}, chosen


def reference_filter_loss(rows, teacher, filters, layers):
    """
    Stage 2: the mean over all positions of the cross-entropies of the layers, summed, through the norm and head that they share.
    Arguments as of [`reference_loss`].
    """
    total, count = 0.0, 0
    for ids, start in rows:
        with torch.no_grad():
            theirs = llama_states(teacher, ids)
        for t in range(start - 1, len(ids) - 1):
            count += 1
            for layer in layers:
                logits = filters["head.weight"] @ filtered_states(filters, layer, theirs[layer][t], "normed")
                total = total + torch.logsumexp(logits, 0) - logits[ids[t + 1]]
    return total / count
