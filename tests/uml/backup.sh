#!/usr/bin/env bash
# Inside the user-mode kernel: backups of a thin and of a thick volume on real
# LVM, while they are in use, and volumes made of them.
#
#   backup.sh SELVAGE FOLDER
#
# RESTIC_PASSWORD opens the repository, which is left in FOLDER/backups.
set -euo pipefail
selvage=$1 folder=$2
export HOME=$folder

lvm vgcreate -q -y myvg1 /dev/ubda >/dev/null 2>&1
lvm lvcreate -q -y -T myvg1/pool -L 1g >/dev/null 2>&1
cat >"$folder/lvmd.yaml" <<YAML
socket-name: /run/topolvm/lvmd.sock
device-classes:
  - {name: thick, volume-group: myvg1, default: true, spare-gb: 0}
  - {name: thin, volume-group: myvg1, spare-gb: 0, type: thin,
     thin-pool: {name: pool, overprovision-ratio: 10}}
backup: {workdir: $folder/work, directory: $folder/backups, change-room: 2}
YAML
"$selvage" lvmd --config "$folder/lvmd.yaml" --ready-file "$folder/ready" >"$folder/log" 2>&1 &
daemon=$!
trap 'kill -TERM "$daemon" 2>/dev/null; tail -50 "$folder/log"' EXIT
for _ in $(seq 600); do
  [ -e "$folder/ready" ] && break
  kill -0 "$daemon" 2>/dev/null || exit 1
  sleep 0.1
done
cli() { "$selvage" --endpoint unix:///run/topolvm/lvmd.sock "$@"; }

# A field of the job on stdin.
field() { sed -nE "s/.*\"$1\": ?\"?([0-9a-zA-Z-]+)\"?.*/\1/p"; }
# How many bytes it read.
bytes_read() { field read_bytes | grep . || echo 0; }

for class in thin thick; do
  cli volume create "$class-v" --size 1 --class "$class" >/dev/null
  device=/dev/myvg1/$class-v
  dd if=/dev/urandom of="$device" bs=1M count=16 conv=fsync,notrunc status=none
  cli backup create "$class-v" "vm/$class" --store file: --name one -o json >"$folder/$class.one"
  dd if=/dev/urandom of="$device" bs=64k count=1 seek=50 conv=fsync,notrunc status=none
  cli backup create "$class-v" "vm/$class" --store file: --name two -o json >"$folder/$class.two"
  cli backup restore "vm/$class@two" "$class-r" --store file: --class "$class" >/dev/null
  cmp "$device" "/dev/myvg1/$class-r"
  sha256sum <"$device" >"$folder/$class.hash"
  echo "$class: read $(bytes_read <"$folder/$class.one") then $(bytes_read <"$folder/$class.two")"
done
read=$(bytes_read <"$folder/thin.two")
[ "$read" -gt 0 ] && [ "$read" -le 1048576 ] || { echo "thin: $read bytes read for 64 KiB"; exit 1; }
kept=$(lvm lvs --noheadings -o lv_name myvg1 | grep -c snap-) || true
[ "$kept" = 1 ] || { echo "$kept snapshots are left, not one of the thin volume"; exit 1; }

# Thick, and written to while it is read: more than the room for changes holds,
# which grows. The limit gives it the time.
cli backup limits --read 20M >/dev/null
cli backup create thick-v vm/thick --store file: --name busy --no-wait -o json >"$folder/busy"
busy=$(field id <"$folder/busy")
until cli backup list | grep -q "  upload  "; do sleep 0.2; done
for at in $(seq 100 2 126); do
  dd if=/dev/urandom of=/dev/myvg1/thick-v bs=1M count=2 seek="$at" conv=fsync,notrunc status=none
  sleep 1.5
done
if cli volume delete thick-v --yes >"$folder/refused" 2>&1; then
  echo "a volume was removed under its backup"
  exit 1
fi
grep -q "thick-v is being backed up" "$folder/refused" || { cat "$folder/refused"; exit 1; }
cli backup limits --read 0 >/dev/null
cli backup watch "$busy" -o json >"$folder/busy"
grep -q "more room for changes" "$folder/log" || { echo "its room did not grow"; exit 1; }
cli backup restore "vm/thick#$(field snapshot <"$folder/busy")" thick-b --store file: >/dev/null
cmp "/dev/myvg1/thick-b" "/dev/myvg1/thick-r"

# Once more by the same name is another backup, of what is there now.
cli backup create thick-v vm/thick --store file: --name busy >/dev/null
cli backup restore vm/thick@busy thick-n --store file: >/dev/null
cmp "/dev/myvg1/thick-n" "/dev/myvg1/thick-v"

trap - EXIT
kill -TERM "$daemon"
wait "$daemon"
echo ok
