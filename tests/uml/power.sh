#!/usr/bin/env bash
# power.sh SELVAGE FOLDER reboot|shutdown|reset : asks an agent for it, on a
# machine that can be had for it. Leaves in FOLDER what it saw: `asked` before
# the question, `came-back` when the machine started a second time, `survived`
# when it went on as if nothing had been asked.
set -euo pipefail
selvage=$1 folder=$2 wish=$3

if [ -e "$folder/asked" ]; then
  : >"$folder/came-back"
  exit 0
fi
export HOME=$folder
"$selvage" node --insecure --allow-power --port 0 --data "$folder/data" \
  --set "node.reset_paths=[\"$folder/precious\"]" \
  --ready-file "$folder/ready" >"$folder/log" 2>&1 &
agent=$!
while kill -0 "$agent" && ! [ -e "$folder/ready" ]; do sleep 0.1; done
endpoint=$(sed -E 's/.*"endpoint":"([^"]*)".*/\1/' "$folder/ready")
: >"$folder/asked"
"$selvage" --endpoint "$endpoint" node "$wish" --yes || echo "refused: $?"
# A machine that is asked goes down within a second or two; one that is busy
# with other things may take its time.
sleep 120
: >"$folder/survived"
