#!/bin/sh
# Keeps the agent in this directory running where there is no systemd.
dir=$1
agent=
end() {
  trap '' TERM
  [ -z "$agent" ] || kill "$agent" 2>/dev/null
  [ -z "$agent" ] || wait "$agent"
  exit 0
}
trap end TERM
while [ -e "$dir/claim" ]; do
  [ ! -e "$dir/agent.log" ] || mv "$dir/agent.log" "$dir/agent.log.1"
  "$dir/selvage" node --config "$dir/node.toml" >"$dir/agent.log" 2>&1 &
  agent=$!
  echo "$agent" >"$dir/agent.pid"
  wait "$agent"
  agent=
  sleep 2
done
