#!/usr/bin/env bash
# Evidence of what autotune does on a device, in parts of less than ten minutes each:
#   tests/gpu/evidence.sh PART FOLDER          one part
#   tests/gpu/evidence.sh all MINUTES FOLDER [PART...]   as many of these parts (all, in the order below) as fit into MINUTES; those
#                                              that ran before on this machine are left out
#   tests/gpu/evidence.sh limits               each part, the seconds that it takes at most, and those with every grace period
# PART, in order of worth:
#   0   preflight: what would fail here and why, on two screens; alone first, and to be read before anything else is started
#   1   does it run: the device, a short search, the core of the tests (limit, peak, estimate, precision, out-of-memory)
#   2   BERT-large: speed-up over the Trainer's defaults and over bf16 alone; the promise against plain trainings
#   5b  Llama 8B with LoRA
#   4   compiled against eager: GPT-2 124M with a padded vocabulary, and BERT-large
#   3   the guides' table, and BERT-large where 16 GiB bind
#   5a  Llama 1B in full, and today's ladder on it
# FOLDER gets evidence-PART.tgz, without databases and logs, after each step; the studies stay in $WORK (default
# /tmp/autotune-evidence), from where the same part resumes them. DEVICE=cpu: the same commands on small models, to
# rehearse them. PYTHON: the interpreter, with the project installed or on PYTHONPATH. Exit code: the first that was not 0.
#
# On a machine that is lent for 30 minutes, ten minutes a command: a start takes 60 to 90 s, and the limits of all parts sum to 46
# minutes. So 0, 1, 2, 5b and 4, a command each, the next one before the machine is given back (else it starts again, and has
# forgotten what ran), and with what is left `all 9 FOLDER 3 5a`. MINUTES are those of the command that runs it.
# To be copied there: the tree (`git ls-files -z | du -ch --files0-from=- | tail -1`) and, in .whl, wheels of the libraries that its
# Python lacks. They are unpacked into $SITE (default /tmp/site) by the first command alone.
# Afterwards: python benchmarks/gpu_report.py FOLDER/evidence-*.tgz --out reports/gpu.md
set -uo pipefail
parts=(0 1 2 5b 4 3 5a)
chosen=("${parts[@]}")
usage() {
    sed -n '2,18s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
[ $# = 0 ] && usage
part=$1
case $part in
0 | 1 | 2 | 3 | 4 | 5a | 5b) [ $# = 2 ] || usage ;;
all)
    [ $# -ge 3 ] && [[ $2 =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage
    [ $# = 3 ] || chosen=("${@:4}")
    for each in "${chosen[@]}"; do [[ " ${parts[*]} " == *" $each "* ]] || usage; done
    ;;
limits) ;;
*) usage ;;
esac
folder=${2:-}
[ "$part" != all ] || folder=$3
device=${DEVICE:-cuda} python=${PYTHON:-python3} work=${WORK:-/tmp/autotune-evidence} site=${SITE:-/tmp/site}
here=$(cd "$(dirname "$0")/../.." && pwd)
grace=20 # seconds from SIGTERM to SIGKILL
status=0 running='' stopped=''

# attend COMMAND...: run it; SIGTERM to this script is handed on, and nothing is started any more. Returns its exit code.
attend() {
    local code
    "$@" &
    running=$!
    while wait "$running"; code=$?; kill -0 "$running" 2>/dev/null; do :; done
    running=''
    return "$code"
}

archive() { # written beside and put in place whole: what is cut from outside keeps that of the step before
    tar czf "$folder/.evidence-$part.tgz" --exclude=study.db* --exclude=log.txt --exclude=.lock -C "$work" "part-$part" &&
        mv "$folder/.evidence-$part.tgz" "$folder/evidence-$part.tgz"
}

# step SECONDS NAME COMMAND...: at most this many seconds, then SIGTERM, on which autotune writes what it has; pytest does on SIGINT.
step() {
    local seconds=$1 name=$2 signal=TERM code
    shift 2
    [ "$name" != tests ] || signal=INT
    [ -z "$stopped" ] || return 0
    echo "== $name: $*" | tee -a "$out/$name.txt"
    attend timeout -s "$signal" -k "$grace" "$seconds" "$@" > >(tee -a "$out/$name.txt") 2>&1
    code=$?
    [ "$name$code" != tests5 ] || code=0 # pytest's: without a card nothing is collected
    echo "== $name: exit $code" | tee -a "$out/$name.txt"
    [ "$status" != 0 ] || status=$code
    archive
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

if [ "$device" = cpu ]; then
    bert=(bert-mini --sequence-length 32 --global-batch-size 8) gpt=(--sequence-length 32 --global-batch-size 8)
    llama_1b=(llama-mini --sequence-length 32 --global-batch-size 8) llama_8b=(llama-mini --sequence-length 32 --global-batch-size 4)
    limit=400MiB pinned=false precisions=fp32,bf16,bf16_weights frozen=bf16_weights
    micro_bert=8 micro_gpt=8 micro_1b=4,8 micro_8b=2,4 guide=(bert-mini --sequence-length 32) compiled=default gpt_sizes='512 64 2 2 64'
else
    bert=(bert-large --sequence-length 512 --global-batch-size 64) gpt=(--sequence-length 1024 --global-batch-size 64)
    llama_1b=(llama-1b --sequence-length 2048 --global-batch-size 16) llama_8b=(llama-8b --sequence-length 2048 --global-batch-size 4)
    limit=16GiB pinned=true precisions=fp32,tf32,bf16,bf16_weights frozen=bf16_frozen
    # The built-in GPT-2 has an odd vocabulary of 50257: padded to a multiple of 64 its head runs on aligned kernels.
    micro_bert=32 micro_gpt=32 micro_1b=8,16 micro_8b=2,4 guide=(bert-large) compiled=regional gpt_sizes='50304 1024 12 12 768'
fi
bert+=(--task sequence-classification)
quiet=(--fix workers=0 --fix "pin_memory=$pinned")
# Every configuration of what is left is tried: what is to be compared is there for certain.
compiling=(--search-space compile --sampler brute-force --fix liger=none --fix expandable_segments=false
    --fix optimizer=adamw_torch_fused --fix attention_mask=where_needed --fix logging_nan_inf_filter=true
    --only "compile=none,$compiled" --allow-loss-difference)

part_0() {
    step 100 preflight "$python" "$here/tests/gpu/preflight.py" --seconds 90 --json "$out/preflight.json"
}
part_1() {
    local seconds=150 # from a cold disk the imports take up to a minute
    [ ! -e "$work/part-0/finished" ] || seconds=90
    autotune "$seconds" doctor doctor --device "$device"
    search 90 first bert-mini --sequence-length 128 --global-batch-size 32 --search-space quick --n-trials 3 --timeout 60s
    step 270 tests "$python" -m pytest -W default -p no:cacheprovider -v --durations=0 "$here/tests/gpu/test_cuda.py" -m "gpu and not gpu_more"
}
part_2() {
    search 220 bert "${bert[@]}" --only precision="$precisions" --only workers=0,2 --fix "pin_memory=$pinned" \
        --n-trials 10 --timeout 195s --probe-timeout 120s
    autotune 190 verify verify bert --output-dir "$out" --seconds 15
    search 110 bert-over-bf16 "${bert[@]}" --args "$out/bf16.json" --only precision="${precisions#fp32,}" "${quiet[@]}" \
        --n-trials 5 --timeout 95s --probe-timeout 60s
}
part_3() {
    autotune 150 guide guide "${guide[@]}" --device "$device" --output-dir "$out"
    search 330 bert-limited "${bert[@]}" --memory-limit "$limit" --only precision=fp32,bf16 \
        --only optimizer=adamw_torch_fused,adamw_bnb_8bit,adafactor "${quiet[@]}" --n-trials 14 --timeout 300s --probe-timeout 120s
}
part_4() {
    search 250 gpt2 "$out/gpt2.json" "${gpt[@]}" "${compiling[@]}" --args "$out/bf16.json" --fix micro_batch_size=$micro_gpt \
        --only precision=bf16,bf16_weights --n-trials 5 --timeout 225s
    search 190 bert-compiled "${bert[@]}" "${compiling[@]}" --fix micro_batch_size=$micro_bert --fix precision=bf16 \
        --n-trials 3 --timeout 170s
}
part_5a() {
    search 270 llama-1b "${llama_1b[@]}" "${compiling[@]}" --fix precision=bf16_weights --only micro_batch_size=$micro_1b \
        --n-trials 5 --timeout 245s --probe-timeout 120s
    autotune 200 ladder guide "${llama_1b[@]}" --global-batch-size 4 --ladder 2026 --device "$device" --output-dir "$out"
}
part_5b() {
    search 230 llama-8b "${llama_8b[@]}" --search-space lora --sampler brute-force --fix lora=16 --fix lora_targets=all_linear \
        --fix precision=$frozen --fix optimizer=adamw_torch_fused --only checkpointing=none,full --only micro_batch_size=$micro_8b \
        --n-trials 5 --timeout 205s --probe-timeout 120s
}
limits() ( # PART: its seconds, and its seconds with every grace period
    out=$work sum=0 steps=0
    step() { ((sum += $1, steps += 1)); }
    "part_$1"
    echo "$sum $((sum + steps * grace))"
)
if [ "$part" = limits ]; then
    for each in "${parts[@]}"; do echo "$each $(limits "$each")"; done
    exit
fi

mkdir -p "$folder" "$work" || exit 1
trap 'stopped=yes; [ -z "$running" ] || kill -TERM "$running" 2>/dev/null' TERM INT HUP
if [ "$part" = all ]; then
    seconds=$(awk "BEGIN { print int(60 * $2) }") left=''
    for each in "${chosen[@]}"; do
        most=$(limits "$each")
        most=${most#* }
        if [ -e "$work/part-$each/finished" ]; then
            echo "== part $each: ran before"
        elif [ -n "$stopped" ] || ((SECONDS + most > seconds)); then
            left+=", $each ($most s)"
        else
            attend "$0" "$each" "$folder"
            code=$?
            echo "== part $each: exit $code, $SECONDS of $seconds s"
            [ "$status" != 0 ] || status=$code
        fi
    done
    [ -z "$left" ] || echo "== left out: ${left#, }"
    exit "$status"
fi

out=$work/part-$part
mkdir -p "$out" || exit 1
trap 'archive; exit $status' EXIT
if ! "$python" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("optuna"))'; then
    if [ ! -d "$site" ]; then
        "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site.part" "$here"/.whl/*.whl && mv "$site.part" "$site"
    fi
    export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 XDG_CACHE_HOME=$work/cache DEVICE=$device
echo '{"bf16": true}' > "$out/bf16.json"
read -r vocabulary positions layers heads width <<< "$gpt_sizes"
cat > "$out/gpt2.json" << END
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
 "bos_token_id": 0, "eos_token_id": 0, "vocab_size": $vocabulary, "n_positions": $positions, "n_layer": $layers,
 "n_head": $heads, "n_embd": $width}
END
if [ "$part" = 0 ] && command -v nvidia-smi > /dev/null; then
    timeout 10 nvidia-smi -q > "$out/nvidia-smi.txt" # not shown: it is long, and would hide the preflight
fi
"part_$part"
[ -n "$stopped" ] || touch "$out/finished"
