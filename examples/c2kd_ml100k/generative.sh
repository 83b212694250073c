#!/usr/bin/env bash
# Generative mode, once, on a sample of users: SmolLM2 with LoRA teaches its own first layers.
#
#     MODEL=HuggingFaceTB/SmolLM2-135M-Instruct bash examples/c2kd_ml100k/generative.sh DATA OUTPUT
#
# DATA: folder of `qcrd c2kd prepare`. OUTPUT: folder for models and results; a step whose results are there is not run again.
# USERS, EPOCHS, LAYERS, HISTORY and THREADS change the size of the run, WIDTH is that of the model's states (the student has the
# same), PYTHON names the interpreter.
set -euo pipefail

DATA=${1:?folder of qcrd c2kd prepare}
OUTPUT=${2:?folder for models and results}
MODEL=${MODEL:-HuggingFaceTB/SmolLM2-135M-Instruct}
USERS=${USERS:-32} EPOCHS=${EPOCHS:-2} LAYERS=${LAYERS:-10} WIDTH=${WIDTH:-576} HISTORY=${HISTORY:-10}
export OMP_NUM_THREADS=${THREADS:-1} TOKENIZERS_PARALLELISM=false
QCRD=("${PYTHON:-python}" -m qcrd_trl c2kd)

COMMON=(--dataset "$DATA" --task_mode generative --max_users "$USERS" --max_history "$HISTORY" --max_length 512
        --per_device_train_batch_size 4 --num_train_epochs "$EPOCHS" --logging_steps 4 --report_to none --save_strategy no
        --lr_scheduler_type cosine --seed 0)
TRAIN=(--per_device_eval_batch_size 8 --warmup_steps 3)

step() {  # step NAME COMMAND...: runs a command once, and says how long it took
    local name=$1 begin=$SECONDS
    shift
    [ -f "$OUTPUT/$name.done" ] && return
    "$@"
    echo "$name: $((SECONDS - begin)) s" | tee "$OUTPUT/$name.done"
}

mkdir -p "$OUTPUT"
step teacher "${QCRD[@]}" teacher "${COMMON[@]}" "${TRAIN[@]}" --model_name_or_path "$MODEL" --output_dir "$OUTPUT/teacher" \
    --use_peft --lora_r 8 --lora_alpha 32 --lora_dropout 0.1 --lora_target_modules all-linear --learning_rate 5e-4
step filters "${QCRD[@]}" filters "${COMMON[@]}" --teacher "$OUTPUT/teacher" --teacher_cache "$OUTPUT/cache" \
    --student_size "$WIDTH" --output_dir "$OUTPUT/filters" --learning_rate 1e-3
STUDENT=(--model_name_or_path "$MODEL" --model_init_kwargs "{\"num_hidden_layers\": $LAYERS}" --learning_rate 1e-4)
step none "${QCRD[@]}" train "${COMMON[@]}" "${TRAIN[@]}" "${STUDENT[@]}" --method none --output_dir "$OUTPUT/none"
step c2kd "${QCRD[@]}" train "${COMMON[@]}" "${TRAIN[@]}" "${STUDENT[@]}" --method c2kd --teacher_cache "$OUTPUT/cache" \
    --layer_filters "$OUTPUT/filters" --output_dir "$OUTPUT/c2kd"
step comparison "${QCRD[@]}" evaluate --compare "$OUTPUT/teacher/results.json" "$OUTPUT/none/results.json" \
    "$OUTPUT/c2kd/results.json" --output "$OUTPUT/comparison.json"
cat "$OUTPUT"/*.done
