#!/bin/bash
# One search on all GPUs of several nodes, by Ray: each GPU measures a configuration of its own.
#
#   MODEL=gpt2 sbatch --nodes=4 recipes/slurm/many_nodes_ray.sh --global-batch-size 64
#
# Set the number behind gpu: to what a node of yours has. Needs `pip install 'hf-autotune[ray]'` on all nodes.
#
#SBATCH --job-name=autotune-ray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
# Whole nodes: `ray symmetric-run` refuses a node on which another Ray runs, and neighbours disturb measurements.
#SBATCH --exclusive
#SBATCH --time=04:00:00
# The search runs on the first node. A job that starts again goes on in the study's folder, on whichever nodes.
#SBATCH --requeue
#SBATCH --open-mode=append

set -euo pipefail
: "${MODEL:?name the model, as MODEL=gpt2 sbatch ...}"
OUTPUT_DIR=${OUTPUT_DIR:-$SLURM_SUBMIT_DIR/reports}

# The address is always explicit, or Ray would join whatever cluster it finds. The port comes from the job's id,
# for two jobs on one node: 20000 to 29999, below the ports that Linux gives to clients.
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$((20000 + SLURM_JOB_ID % 10000))

# Who has the token may run code in this Ray cluster. Only the owner may read the file; it is gone when the job ends.
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH=$SLURM_SUBMIT_DIR/.ray-token-$SLURM_JOB_ID
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
rm -f "$RAY_AUTH_TOKEN_PATH"
(
    umask 077
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH"
)

# Ray does not report its use to its makers.
export RAY_USAGE_STATS_ENABLED=0
# Ray does not kill what measures when memory is short: autotune limits memory itself.
export RAY_memory_monitor_refresh_ms=0
# Seconds that the first node waits for the others, and they for it.
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_ON_NODE:-1}

# What each node runs. Ended by a signal, as by scancel, `ray symmetric-run` would leave Ray running: it is stopped here.
on_node() {
    ray symmetric-run "$@" &
    trap 'kill -TERM $! 2>/dev/null || true' TERM
    local status=0
    wait $! || status=$?
    if [ "$status" -gt 128 ]; then
        ray stop --force
    fi
    # Ray's logs stay where something failed.
    if [ "$status" -eq 0 ] || [ "$status" -gt 128 ]; then
        rm -rf "/tmp/ray-$SLURM_JOB_ID"
    fi
    return "$status"
}
export -f on_node

# In the background, so that this shell gets SIGTERM at once, hands it on, and removes the token.
# The temporary folder is this job's own. Its path is short because sockets below it have at most 107 characters.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 bash -c 'on_node "$@"' on_node \
    --address "$HEAD:$PORT" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus "$SRUN_CPUS_PER_TASK" --num-gpus "${SLURM_GPUS_ON_NODE:-0}" --temp-dir "/tmp/ray-$SLURM_JOB_ID" \
    --disable-usage-stats -- \
    env RAY_ADDRESS="$HEAD:$PORT" \
    autotune search "$MODEL" --devices all --executor ray --output-dir "$OUTPUT_DIR" "$@" &
STEP=$!
trap 'kill -TERM "$STEP" 2>/dev/null || true' TERM
# The first wait ends when SIGTERM comes, the second when srun has ended.
wait "$STEP" || wait "$STEP"
