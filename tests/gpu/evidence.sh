#!/usr/bin/env bash
# Evidence of what autotune does on a device, in five parts of at most ten minutes each: tests/gpu/evidence.sh PART FOLDER
#   1  does it run: the device, a short search, the core of the tests (limit, peak, estimate, precision, out-of-memory)
#   2  BERT-large: speed-up over the Trainer's defaults and over bf16 alone; the promise against 500 steps
#   3  the guides' table, and BERT-large where 16 GiB bind
#   4  compiled against eager: GPT-2 124M with a padded vocabulary, and BERT-large
#   5  Llama: 1B in full, 8B with LoRA
# FOLDER gets evidence-PART.tgz, without databases and logs, also where a step fails or SIGTERM ends it; the studies stay in
# $WORK (default /tmp/autotune-evidence), where the same part resumes them. DEVICE=cpu: the same commands on small models, to
# rehearse them. PYTHON: the interpreter, with the project installed or on PYTHONPATH. Exit code: the first that was not 0.
set -uo pipefail
[[ ${1:-} == [1-5] && -n ${2:-} ]] || { sed -n '2,10s/^# //p' "$0" >&2; exit 2; }
part=$1 folder=$2
device=${DEVICE:-cuda} python=${PYTHON:-python3} work=${WORK:-/tmp/autotune-evidence}
here=$(cd "$(dirname "$0")/../.." && pwd)
out=$work/part-$part
mkdir -p "$folder" "$out" || exit 1
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 XDG_CACHE_HOME=$work/cache

status=0 running='' stopped=''
trap 'stopped=yes; [ -z "$running" ] || kill -TERM "$running" 2>/dev/null' TERM INT HUP
trap 'tar czf "$folder/evidence-$part.tgz" --exclude=study.db* --exclude=log.txt --exclude=.lock -C "$work" "part-$part"; exit $status' EXIT

# step SECONDS NAME COMMAND...: at most so many seconds, then SIGTERM, on which autotune writes what it has.
step() {
    local seconds=$1 name=$2 code
    shift 2
    [ -z "$stopped" ] || return 0
    echo "== $name: $*" | tee -a "$out/$name.txt"
    timeout -k 20 "$seconds" "$@" > >(tee -a "$out/$name.txt") 2>&1 &
    running=$!
    while wait "$running"; code=$?; kill -0 "$running" 2>/dev/null; do :; done
    running=''
    [ "$name$code" != tests5 ] || code=0 # pytest's: without a card nothing is collected
    echo "== $name: exit $code" | tee -a "$out/$name.txt"
    [ "$status" != 0 ] || status=$code
}
autotune() { # SECONDS NAME ARGUMENTS...
    local seconds=$1 name=$2
    shift 2
    step "$seconds" "$name" "$python" -m autotune "$@"
}
search() { # SECONDS NAME MODEL ARGUMENTS...
    local seconds=$1 name=$2
    shift 2
    autotune "$seconds" "$name" search "$@" --device "$device" --output-dir "$out" --study-name "$name" --no-history
}

cat > "$out/bf16.json" <<< '{"bf16": true}'
# The built-in GPT-2 has an odd vocabulary of 50257: padded to a multiple of 64 its head runs on aligned kernels.
gpt2='{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0'
if [ "$device" = cpu ]; then
    bert=(bert-mini --sequence-length 32 --global-batch-size 8) gpt=(--sequence-length 32 --global-batch-size 8)
    llama_1b=(llama-mini --sequence-length 32 --global-batch-size 8) llama_8b=(llama-mini --sequence-length 32 --global-batch-size 4)
    limit=400MiB pinned=false precisions=fp32,bf16,bf16_weights frozen=bf16_weights steps=20
    micro_gpt=4,8 micro_1b=2,4,8 micro_8b=1,2,4 guide=(bert-mini --sequence-length 32) compiled=default
    echo "$gpt2, \"vocab_size\": 512, \"n_positions\": 64, \"n_layer\": 2, \"n_head\": 2, \"n_embd\": 64}" > "$out/gpt2.json"
else
    bert=(bert-large --sequence-length 512 --global-batch-size 64) gpt=(--sequence-length 1024 --global-batch-size 64)
    llama_1b=(llama-1b --sequence-length 2048 --global-batch-size 16) llama_8b=(llama-8b --sequence-length 2048 --global-batch-size 4)
    limit=16GiB pinned=true precisions=fp32,tf32,bf16,bf16_weights frozen=bf16_frozen steps=500
    micro_gpt=32,64 micro_1b=4,8,16 micro_8b=1,2,4 guide=(bert-large) compiled=regional
    echo "$gpt2, \"vocab_size\": 50304, \"n_positions\": 1024}" > "$out/gpt2.json"
fi
bert+=(--task sequence-classification)
quiet=(--fix workers=0 --fix "pin_memory=$pinned")

case $part in
1)
    command -v nvidia-smi > /dev/null && nvidia-smi -q > "$out/nvidia-smi.txt"
    "$python" -m pip list > "$out/pip.txt" 2> /dev/null
    autotune 90 doctor doctor --device "$device"
    search 100 first bert-mini --sequence-length 128 --global-batch-size 32 --search-space quick --n-trials 3 --timeout 60s --confirmation-rounds 1
    step 270 tests "$python" -m pytest -W default -p no:cacheprovider -v --durations=0 "$here/tests/gpu" -m "gpu and not gpu_more"
    ;;
2)
    search 290 bert "${bert[@]}" --only precision="$precisions" --only workers=0,2 --fix "pin_memory=$pinned" \
        --n-trials 10 --timeout 260s --probe-timeout 120s
    autotune 120 verify verify bert --output-dir "$out" --steps "$steps"
    search 130 bert-over-bf16 "${bert[@]}" --args "$out/bf16.json" --only precision="${precisions#fp32,}" "${quiet[@]}" \
        --n-trials 5 --timeout 110s --probe-timeout 60s
    ;;
3)
    autotune 150 guide guide "${guide[@]}" --device "$device" --output-dir "$out"
    search 330 bert-limited "${bert[@]}" --memory-limit "$limit" --only precision=fp32,bf16 \
        --only optimizer=adamw_torch_fused,adamw_bnb_8bit,adafactor "${quiet[@]}" --n-trials 14 --timeout 300s --probe-timeout 120s
    ;;
4)
    search 290 gpt2 "$out/gpt2.json" "${gpt[@]}" --search-space compile --fix liger=none --fix expandable_segments=false \
        --only precision=bf16,bf16_weights --only compile=none,$compiled --only micro_batch_size=$micro_gpt \
        --n-trials 6 --timeout 260s --confirmation-rounds 2
    search 240 bert-compiled "${bert[@]}" --search-space compile --fix liger=none --fix expandable_segments=false \
        --only precision=bf16,bf16_weights --only compile=none,$compiled --n-trials 5 --timeout 210s --confirmation-rounds 2
    ;;
5)
    search 280 llama-1b "${llama_1b[@]}" --search-space compile --fix liger=none --fix expandable_segments=false --fix precision=bf16_weights \
        --only compile=none,$compiled --only micro_batch_size=$micro_1b --n-trials 6 --timeout 250s --probe-timeout 120s --confirmation-rounds 2
    search 250 llama-8b "${llama_8b[@]}" --search-space lora --fix lora=16 --fix lora_targets=all_linear --fix precision=$frozen \
        --fix optimizer=adamw_torch_fused --only checkpointing=none,full --only micro_batch_size=$micro_8b \
        --n-trials 4 --timeout 220s --probe-timeout 120s --confirmation-rounds 2
    ;;
esac
