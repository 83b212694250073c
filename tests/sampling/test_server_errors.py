"""What the error bodies of real servers mean, how long they ask to wait, and that no key is left in a text."""

import json
import time
from email.utils import formatdate

import pytest
from serving import KEY

from qcrd_trl.sampling.teachers.openai_policy import Dialect
from qcrd_trl.sampling.teachers.openai_replies import share_usage
from qcrd_trl.sampling.teachers.server_errors import ServerFault, fault_of, redact, seconds_to_wait, shorten


def openai_error(message, **fields):
    return {"error": {"message": message, **fields}}


OVERFLOWS = [
    openai_error(
        "This model's maximum context length is 16385 tokens. However, your messages resulted in 20000 tokens.",
        param="messages",
        code="context_length_exceeded",
    ),
    # vLLM names parameters too: it must not be asked under other names for ever.
    openai_error(
        "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum context length is 2048 tokens "
        "and your request has 2000 input tokens (512 > 2048 - 2000).",
        type="BadRequestError",
        param=None,
        code=400,
    ),
    openai_error(
        "the request exceeds the available context size, try increasing it",
        type="exceed_context_size_error",
        code=400,
        n_ctx=512,
    ),
    {
        "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
        "error_type": "validation",
    },
    {"error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000"},
    openai_error("prompt is too long: 215000 tokens > 200000 maximum", type="invalid_request_error"),
    [
        openai_error(
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", code=400
        )
    ],
    {
        "object": "error",
        "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    },
]


@pytest.mark.parametrize("body", OVERFLOWS)
@pytest.mark.parametrize("status", [400, 422])
def test_context_overflow(body, status):
    """Taken for a refused parameter it would stop the run; taken for a passing fault, it would be retried for minutes."""
    assert fault_of(status, {}, json.dumps(body).encode()).kind == "overflow"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (413, "Payload Too Large", "overflow"),
        (500, openai_error("input is too long for the context window"), "overflow"),
        (500, openai_error("CUDA error"), "transient"),
        (503, openai_error("Loading model", type="unavailable_error"), "transient"),
        (
            429,
            openai_error("Rate limit reached. Add a payment method at /account/billing.", code="rate_limit"),
            "transient",
        ),
        # A limit per minute, in the words of a used-up account.
        (
            429,
            [openai_error("You exceeded your current quota, check your plan. Retry in 32s.", code=429)],
            "transient",
        ),
        (429, openai_error("You exceeded your current quota", code="insufficient_quota"), "credit"),
        (402, {"error": {"message": "Insufficient Balance"}}, "credit"),
        (401, openai_error("Incorrect API key provided", code="invalid_api_key"), "key"),
        (401, "Unauthorized", "key"),
        (403, openai_error("You are not allowed to sample from this model"), "key"),
        (403, openai_error("Your chosen model requires moderation and your input was flagged"), "filtered"),
        (400, openai_error("rejected", code="content_filter"), "filtered"),
        (404, openai_error("The model `x` does not exist or you do not have access to it."), "model"),
        (404, openai_error('model "x" not found, try pulling it first', type="api_error"), "model"),
        (404, {"detail": "Not Found"}, "address"),
        (404, "<html>nginx</html>", "address"),
        (405, {"detail": "Method Not Allowed"}, "address"),
        (400, {"detail": "Server is pinned to 'a'; requested 'b'."}, "model"),
        (400, openai_error("bytedance/seed-oss-36b is not a valid model ID"), "model"),
        (400, openai_error("The model `bytedance/seed-oss` does not exist"), "model"),
        (400, openai_error("Invalid messages"), "refused"),
        (400, "", "refused"),
        (418, "\xff", "refused"),
    ],
)
def test_kinds(status, body, kind):
    """A kind that is wrong stops a run for one question, or retries for ever what cannot succeed."""
    body = body.encode("latin-1") if isinstance(body, str) else json.dumps(body).encode()
    fault = fault_of(status, {}, body)
    assert (fault.kind, fault.status) == (kind, status)
    assert fault.message.startswith(f"HTTP {status}")


@pytest.mark.parametrize(
    ("message", "fields", "parameter"),
    [
        ("Unsupported parameter", {"param": "temperature"}, "temperature"),
        ("Use 'max_completion_tokens' instead of 'max_tokens'", {"param": "max_tokens"}, "max_tokens"),
        ("'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", {}, "max_tokens"),
        ("Unrecognized request argument supplied: seed", {}, "seed"),
        ("Only one completion choice is allowed", {}, "n"),
        ("'n' : number must be at most 1", {}, "n"),
        ("n must be 1 when using greedy sampling, got 5.", {}, "n"),
        ("best_of must be 1 when using greedy sampling", {}, "n"),
        ("Unexpected fields in the request: {'n'}", {}, "n"),
        ("Too many stop sequences: at most 4", {}, "stop"),
        ("top_p must be in (0, 1], got 0.0.", {}, "top_p"),
        ("an answer in seedless grapes", {}, None),
        ("nothing about a letter n", {}, None),
    ],
)
def test_refused_parameters(message, fields, parameter):
    """The parameter that is refused must be found, and no other: it is left out from then on."""
    fault = fault_of(400, {}, json.dumps(openai_error(message, **fields)).encode())
    assert (fault.kind, fault.parameter) == (("parameter", parameter) if parameter else ("refused", None))


def test_the_validation_errors_of_fastapi():
    body = {"detail": [{"loc": ["body", "n"], "msg": "Extra inputs are not permitted", "type": "extra_forbidden"}]}
    fault = fault_of(422, {}, json.dumps(body).encode())
    assert (fault.kind, fault.parameter) == ("parameter", "n")
    assert fault.message == "HTTP 422: body.n: Extra inputs are not permitted"


def test_a_parameter_that_was_not_sent():
    """Adapting to it would send the same request again, for ever."""
    takes = Dialect()
    assert not takes.adapt(ServerFault("parameter", "seed", parameter="seed"), {"temperature": 0.7})
    assert not takes.adapt(ServerFault("parameter", "t", parameter="temperature"), {"temperature": 0.7})
    assert takes == Dialect()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After-Ms": "250", "Retry-After": "7"}, 0.25),
        ({"retry-after-ms": "x", "Retry-After": "7"}, 7.0),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT", "Date": "Fri, 31 Dec 1999 23:59:00 GMT"}, 59.0),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, 0.0),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT", "Date": "Sat, 01 Jan 2000 00:00:09 GMT"}, 0.0),
    ],
)
def test_seconds_to_wait(headers, seconds):
    assert seconds_to_wait(headers) == seconds
    assert fault_of(429, headers, b"").wait == seconds


def test_a_date_without_the_servers_clock():
    assert seconds_to_wait({"Retry-After": formatdate(time.time() + 30, usegmt=True)}) == pytest.approx(30, abs=2)


@pytest.mark.parametrize(
    "text",
    [
        f"Incorrect API key provided: {KEY}.",
        f"Incorrect API key provided: {KEY[:12]}...{KEY[-8:]}.",  # quoted shortened
        f'{{"error": "key {KEY[:20]}',  # cut off
        f"url?key={KEY}&x",
        f"{KEY}{KEY}",
        KEY,
    ],
)
def test_no_piece_of_a_key_is_left(text):
    shown = redact(text, KEY)
    assert "***" in shown
    assert not [KEY[i : i + 8] for i in range(len(KEY) - 7) if KEY[i : i + 8] in shown]
    assert not [part for part in text.replace(KEY, " ").split() if len(part) < 8 and part not in shown]


def test_redaction_of_other_forms():
    assert redact("authorization: Bearer abc.def, x", None) == "authorization: Bearer ***, x"
    assert redact("key a%2Fb%2Bcdefgh", "a/b+cdefgh") == "key ***"
    assert redact("nothing here", KEY) == "nothing here"
    assert redact("pin 1234", "1234") == "pin ***"


def test_a_key_is_hidden_before_a_text_is_cut():
    """Cut first, the half of a key that is left would not be found."""
    body = json.dumps(openai_error("x" * 270 + KEY + "y" * 100)).encode()
    message = fault_of(400, {}, body, KEY).message
    assert "***" in message
    assert KEY[:8] not in message
    assert len(message) <= 320


def test_shorten():
    assert shorten(" a\n  b\t") == "a b"
    assert shorten("x" * 301) == "x" * 300 + "..."


def test_share_usage_by_hand():
    """The sum over the records must be what was paid."""
    usage = {"prompt_tokens": 7, "completion_tokens": 10}
    # 10 tokens over 1, 2 and 0 characters: up to 10 * 1 / 3 = 3, 10 * 3 / 3 = 10, 10.
    assert share_usage(usage, ["a", "bc", None]) == [
        {"prompt_tokens": 7, "completion_tokens": 3},
        {"prompt_tokens": 0, "completion_tokens": 7},
        {"prompt_tokens": 0, "completion_tokens": 0},
    ]
    assert [share["completion_tokens"] for share in share_usage(usage, [None, "", ""])] == [3, 3, 4]
    assert share_usage({}, ["a", "b"]) == [{}, {}]
