#!/bin/bash
# One search on all GPUs of one node: each GPU measures a configuration of its own.
#
#   MODEL=gpt2 sbatch recipes/slurm/one_node_all_gpus.sh --global-batch-size 64
#
# Set the number behind gpu: to what a node of yours has.
#
#SBATCH --job-name=autotune-node
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gres=gpu:8
# The whole node: a neighbour's job would disturb the measurements.
#SBATCH --exclusive
#SBATCH --time=04:00:00
# As in one_search_a_job.sh: a job that starts again goes on in the study's folder.
#SBATCH --requeue
#SBATCH --open-mode=append

set -euo pipefail
: "${MODEL:?name the model, as MODEL=gpt2 sbatch ...}"
OUTPUT_DIR=${OUTPUT_DIR:-$SLURM_SUBMIT_DIR/reports}

# One process, all cores: autotune itself gives each GPU its share of them.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_ON_NODE:-1}

exec srun --ntasks=1 autotune search "$MODEL" --devices all --output-dir "$OUTPUT_DIR" "$@"
