#!/usr/bin/env bash
# Inside the user-mode kernel: our daemon in lvmd's place on real LVM, and the
# stock client's calls against it.
#
#   stock.sh SELVAGE PYTHON REPOSITORY FOLDER
set -euo pipefail
selvage=$1 python=$2 repository=$3 folder=$4

lvm vgcreate -q -y myvg1 /dev/ubda >/dev/null 2>&1
cat >"$folder/lvmd.yaml" <<YAML
socket-name: /run/topolvm/lvmd.sock
device-classes:
  - name: ssd
    volume-group: myvg1
    default: true
    spare-gb: 1
YAML
"$selvage" lvmd --config "$folder/lvmd.yaml" --ready-file "$folder/ready" >"$folder/log" 2>&1 &
daemon=$!
for _ in $(seq 600); do
  [ -e "$folder/ready" ] && break
  kill -0 "$daemon" 2>/dev/null || { cat "$folder/log"; exit 1; }
  sleep 0.1
done
status=0
"$python" "$repository/tests/foreign/topolvm.py" "$repository/tests/foreign/lvmd_wire.proto" \
  /run/topolvm/lvmd.sock ssd || status=$?
[ "$(stat -c %a /run/topolvm/lvmd.sock)" = 600 ] || { echo "the socket is open to others"; status=1; }
kill -TERM "$daemon"
wait "$daemon" || status=$?
[ "$status" = 0 ] || cat "$folder/log"
exit "$status"
