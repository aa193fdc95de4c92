#!/bin/bash
# One search on one GPU. Submit it once for each model; SLURM spreads the jobs over the GPUs.
#
#   MODEL=gpt2 sbatch recipes/slurm/one_search_a_job.sh --global-batch-size 64 --n-trials 20
#
# MODEL is the model; everything after the script goes to `autotune search` as it is.
#
#SBATCH --job-name=autotune
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
# SLURM may start the job again after a preemption or when its node fails. The study's folder is the checkpoint:
# the same command goes on after the last trial on disk. Reports must therefore be on a disk that all nodes see.
#SBATCH --requeue
#SBATCH --open-mode=append

set -euo pipefail
: "${MODEL:?name the model, as MODEL=gpt2 sbatch ...}"

# The same study in each start of the job, and a study of its own for each job that searches something else.
OUTPUT_DIR=${OUTPUT_DIR:-$SLURM_SUBMIT_DIR/reports}

# Some versions of srun do not take over the job's --cpus-per-task.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

# exec: srun gets SLURM's signals itself. On SIGTERM autotune ends its probe, writes the report and exits with 143.
exec srun --ntasks=1 autotune search "$MODEL" --output-dir "$OUTPUT_DIR" "$@"
