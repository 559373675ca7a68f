#!/usr/bin/env bash
# A Ray cluster of 2 nodes inside one Slurm job, and a study on it. Submit with: sbatch slurm.sh
# The same job again continues the study; Slurm's signal before the time limit ends it with checkpoints.
#SBATCH --job-name=fpl-lambda-sweep
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH --mem=128G
#SBATCH --time=08:00:00
##SBATCH --partition=... --account=...
#SBATCH --output=%x-%j.log
#SBATCH --signal=B:TERM@180
set -euo pipefail

# Here: module load, source .venv/bin/activate, whatever makes fpl-tune and ray available on every node.

shared="$PWD" # a folder that all nodes see
export FPL_TUNE_OUTPUT="$shared/outputs"                    # all nodes must see it
export FPL_TUNE_CACHE="${FPL_TUNE_CACHE:-/tmp/fpl-tune-$USER}"  # features: one copy a node
export OMP_NUM_THREADS=1 RAY_worker_niceness=0              # trials are the work, not something beside it
mkdir -p "$FPL_TUNE_OUTPUT"

# Only who can read this file may use the cluster.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$shared/.ray-token-$SLURM_JOB_ID"
(umask 077 && python -c 'import secrets; print(secrets.token_hex(32))' > "$RAY_AUTH_TOKEN_PATH")

head=$(hostname)
ip=$(hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 20000))
started=()
finish() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  rm -f "$RAY_AUTH_TOKEN_PATH"
}
trap finish EXIT

node=(ray start --block --disable-usage-stats --num-cpus=32 --num-gpus=4)
# MPS lets kernels of trials that share a GPU run at the same time; without it they take turns.
export CUDA_MPS_PIPE_DIRECTORY="/tmp/mps-$SLURM_JOB_ID" CUDA_MPS_LOG_DIRECTORY="/tmp/mps-$SLURM_JOB_ID"
node=(bash -c 'mkdir -p "$CUDA_MPS_PIPE_DIRECTORY"; nvidia-cuda-mps-control -d || true; exec "$@"' sh "${node[@]}")
# Since 22.05, srun does not take over the job's --cpus-per-task: without it, the node would have one core.
srun --overlap --nodes=1 --ntasks=1 --cpus-per-task=32 --nodelist="$head" \
  "${node[@]}" --head --node-ip-address="$ip" --port="$port" --include-dashboard=false \
  --temp-dir="/tmp/ray-$SLURM_JOB_ID" &
started+=($!)
fpl-tune cluster wait "$ip:$port" --nodes 1
# A node whose link was cut for half a minute is dead to Ray, and ends: it joins again.
srun --overlap --nodes=1 --ntasks=1 --cpus-per-task=32 --exclude="$head" \
  bash -c 'until "$@"; do sleep 5; done' sh "${node[@]}" --address="$ip:$port" &
started+=($!)
fpl-tune cluster wait "$ip:$port" --nodes 2

export RAY_ADDRESS="$ip:$port"
fpl-tune study lambda_sweep &
study=$!
trap 'kill -TERM "$study"' TERM  # a clean stop: checkpoints, then exit code 143
code=0
wait "$study" || code=$?
while kill -0 "$study" 2>/dev/null; do
  code=0
  wait "$study" || code=$?
done
exit "$code"
