#!/usr/bin/env bash
# Runs the checks on a GPU machine without a network, in three calls, one for each folder of pieces (README.md):
#   run.sh N PIECES     N = 1, 2, 3; PIECES = the folder of the N-th pieces. Call 3 writes its results to $OUT.
# In the repository's root. What needs only torch runs in the background from call 1 on, while the other pieces travel.
set -uo pipefail
call=$1 pieces=$2
site=${SITE:-/tmp/omni-site} results=${RESULTS:-/tmp/omni-results} layers=${LAYERS:-26}
mkdir -p "$site" "$results"
export PYTHONPATH=$site:$PWD/stage_server:$PWD/proto:$PWD/cli:$PWD/operator:$PWD/kube:$PWD/tests:$PWD
export PYTHONUNBUFFERED=1 VLLM_LOGGING_LEVEL=INFO
check() { timeout "$1" python3 -m benchmarks.gpu --out "$results/$2" --only "${@:3}" > "$results/$2.txt" 2>&1; }
for file in "$pieces"/*.tar.xz; do tar xJf "$file" -C "$site" & done
wait
case $call in
1)
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv
  python3 -c 'import importlib.metadata as m; print({n: m.version(n) for n in ("torch", "triton", "transformers", "numpy")})'
  export -f check
  export results layers
  # shellcheck disable=SC2016 # the variables are those of the inner shell
  setsid nohup bash -c '
    timeout 200 python3 -m benchmarks.gpu.offline.load checkpoint "$results/shaped-30b-a3b" --layers "$layers" > "$results/shaped.txt" 2>&1
    check 60 ceilings environment.ceilings; check 80 predictor qwen3_omni.predictor
    check 90 code2wav qwen3_omni.code2wav_speed; check 90 steps sharing.steps
    touch "$results/timed"
    check 110 torch token2wav qwen3_omni.chunks qwen3_omni.together environment.driver environment.capability' > "$results/background.txt" 2>&1 < /dev/null &
  sleep 5 ;;
2) tail -n 5 "$results"/*.txt ;;
3)
  for _ in $(seq 120); do [ -e "$results/timed" ] && break; sleep 1; done
  # Exactness beside the start of the large model, whose weights take most of that time. Speed is measured after both.
  (check 150 exact qwen3_omni.codes environment.fork; touch "$results/exact-done") &
  timeout "${LIMIT_S:-280}" python3 -m benchmarks.gpu.offline.load serve "$results/shaped-30b-a3b" --out "$results/speed" \
    --after "$results/exact-done" > "$results/speed.txt" 2>&1
  wait
  check 120 rows rows_in
  for file in "$results"/*.txt; do echo "== $file"; grep -v '^\[' "$file" | tail -n 40; done
  tail -n 8 "$results"/speed/logs/speed/*.log | cut -c1-300
  [ -z "${OUT:-}" ] || tar czf "$OUT/results.tar.gz" -C "$results" --exclude '*.safetensors' . ;;
esac
