#!/usr/bin/env bash
# Train ResNet-50 on eight NPUs:  bash run_8p.sh [DIR] [more main.py options]
#
# DIR holds train/ and val/; it defaults to $DATA_DIR, then to /data/imagenet. Options given here win over those below.
# What is printed is also kept in a log file ($LOG_FILE, or train_DATE_TIME.log in this folder). The last lines are
# "images/s: N", "best Acc@1: P" and "checkpoint: PATH". The exit status is main.py's.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
data=${DATA_DIR:-/data/imagenet}
if [[ $# -gt 0 && $1 != -* ]]; then
    data=$1
    shift
fi
log=${LOG_FILE:-train_$(date +%Y%m%d_%H%M%S).log}

if ! : >"$log" || [[ ! -f $log ]]; then
    echo "run_8p.sh: cannot keep the log in $log: set LOG_FILE to a file that can be written" >&2
    exit 1
fi

# CANN's environment, unless it is loaded already. The script refers to variables that may be unset.
if [[ -z ${ASCEND_HOME_PATH:-} ]]; then
    for script in /usr/local/Ascend/{cann,ascend-toolkit}/set_env.sh "$HOME"/Ascend/{cann,ascend-toolkit}/set_env.sh; do
        if [[ -f $script ]]; then
            set +u
            # shellcheck disable=SC1090
            source "$script"
            set -u
            break
        fi
    done
fi

# Two stages of the operator queue with balanced load: the host prepares an operator while it launches the one before.
export TASK_QUEUE_ENABLE=${TASK_QUEUE_ENABLE:-2}
# Each NPU's threads on cores of their own, the ones that launch operators apart from the data loading.
export CPU_AFFINITY_CONF=${CPU_AFFINITY_CONF:-2}
# How many seconds the ranks wait for each other at the start: eight of them load their libraries at once.
export HCCL_CONNECT_TIMEOUT=${HCCL_CONNECT_TIMEOUT:-600}
# One thread a process for small host operators; more would contend with the data loading.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# The guide's command. It asks for a port too; left out, a free one is used.
exec 3> >(exec tee -ip -- "$log") # -i: Ctrl-C is main.py's to handle; -p: it goes on when nobody reads any more
tee=$!
python3 "$here/main.py" "$data" \
    --workers 160 \
    --lr 0.8 \
    --arch resnet50 \
    --dist-backend hccl \
    --multiprocessing-distributed \
    --device_list 0,1,2,3,4,5,6,7 \
    --world-size 1 \
    --batch-size 2048 \
    --epochs 90 \
    --rank 0 \
    --amp \
    "$@" >&3 2>&1 3>&- &
training=$!
exec 3>&-

# A batch system's signal goes to this script: main.py saves a checkpoint when it gets it. Each one ends a wait.
trap 'kill -s INT $training' INT
trap 'kill -s TERM $training' TERM HUP
wait $training
status=$?
while kill -0 $training 2>/dev/null; do
    wait $training
    status=$?
done
wait $tee

if [[ $status -eq 0 ]]; then
    sed -nE "s|^=> best Acc@1 ([^,]*), ([0-9]+) img/s, checkpoint '(.*)'$|images/s: \2\nbest Acc@1: \1\ncheckpoint: \3|p" -- "$log"
else
    echo "run_8p.sh: main.py ended with status $status; its output is in $log" >&2
fi
exit "$status"
