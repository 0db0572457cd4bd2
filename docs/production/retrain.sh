#!/usr/bin/env bash
# Retrain a task with new labelled rows. The new model goes live unless it is shown worse on the task's test rows.
#
#   retrain.sh TASK NEW_ROWS...        add the rows, train on from the live model, compare, promote or not
#   retrain.sh --promote TASK@RUN      make a run live without a comparison: the first model, or a rollback
#
# Run it in the folder of the task's data, store and pipeline.toml. An interrupted run resumes when you repeat it.
# live.env holds MODEL=TASK@RUN,..., which adapter-fusion.service reads; history.tsv every decision.
# Settings: ON_PROMOTE, a command to run when live.env has changed, such as "systemctl restart adapter-fusion";
# OPTIONS, options of extract, such as "--epochs 5"; KEEP, the number of promoted models that stay in the store (3).
set -euo pipefail

field() { # the value of a Python expression of "it", the JSON on the last line of standard input
    tail -n 1 | python3 -c 'import json, sys; it = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"
}

decide() { printf '%s\t%s\t%s\t%s\n' "$(date +%F)" "$@" | tee -a history.tsv; } # TASK RUN DECISION

live_run() { sed -nE "s/^MODEL=(.*,)?$1@([0-9a-f]+)(,.*)?$/\2/p" live.env 2>/dev/null || true; }

promote() { # TASK RUN
    local others
    others=$(sed -n 's/^MODEL=//p' live.env 2>/dev/null | tr ',' '\n' | grep -v "^$1@" | paste -sd, - || true)
    mkdir -p exports # one file is a model, for other machines (store import) and for going back
    if [ -e "exports/$1-$2.tar.xz" ]; then
        adapter-fusion store import "exports/$1-$2.tar.xz" # the store may no longer have it
    else
        adapter-fusion store export "$2" "exports/$1-$2.tar.xz"
    fi
    decide "$1" "$2" promoted
    echo "MODEL=${others:+$others,}$1@$2" >live.env.new
    mv live.env.new live.env # at once: a server that starts reads the old or the new line
    sh -c "${ON_PROMOTE:-true}"
}

exec 9>.retrain.lock
flock -w 60 9 || { echo "another retrain.sh is running in this folder" >&2; exit 2; }
if [ "$#" -eq 2 ] && [ "$1" = --promote ]; then
    promote "${2%@*}" "${2#*@}"
    exit
fi
[ "$#" -ge 2 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }

task=$1
shift
live=$(live_run "$task")
[ -n "$live" ] || { echo "no live model of $task: promote one first (retrain.sh --promote $task@RUN)" >&2; exit 2; }

for file in "$@"; do
    adapter-fusion tasks add "data/$task" "$file" # keeps every old row in its split
done
candidate=$(adapter-fusion extract --task "$task" --start-from "$task@$live" ${OPTIONS:-} --json | field 'it["run"]')
result=$(adapter-fusion evaluate --target "$task" --split test --using "$candidate" --against "$live" --skip-baselines --json)
sed '$d' <<<"$result"
if [ "$(field 'it["baselines"][0]["gain_interval"][1] < 0' <<<"$result")" = True ]; then # shown worse
    decide "$task" "$candidate" rejected
else
    promote "$task" "$candidate"
fi

# The store keeps the live model and those promoted before it; exports/ has the others that were live.
keep=$(awk -v task="$task" '$2 == task && $4 == "promoted" { print $3 }' history.tsv | tail -n "${KEEP:-3}")
for run in $(awk -v task="$task" '$2 == task { print $3 }' history.tsv | sort -u); do
    if [ -e "adapters_store/adapters/$task/$run" ] && ! grep -qxF "$run" <<<"$keep"; then
        adapter-fusion store remove "$run" || true # a fusion may need it
    fi
done
