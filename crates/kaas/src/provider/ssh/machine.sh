# Commands of the provider `ssh` on a machine. Arguments: directory, command,
# controller, operation and, for some, one more.
#
# All of it is in the one directory. The file `claim` in it says whose the
# machine is: it is written first and removed last, so that a command which is
# repeated finds how far the one before came.
set -eu
umask 077
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
dir=$1 command=$2 controller=$3 operation=$4 argument=${5-}
claim=$dir/claim
unit=selvage-kaas-node.service
unit_file=/etc/systemd/system/$unit

fail() {
  echo "$1" >&2
  exit "${2:-1}"
}

# One command at a time. The directory above is locked, so that nothing is left
# of the lock.
lock() {
  mkdir -p "${dir%/*}"
  exec 9<"${dir%/*}"
  flock -w 60 9 || fail "another command has been at work for a minute"
}

# The claim has the cluster in it too.
is_ours() {
  [ -f "$claim" ] && read -r whose what _ <"$claim" && [ "$whose $what" = "$controller $operation" ]
}

check_ours() {
  is_ours || fail "the machine is not set aside for operation $operation" 4
}

has_systemd() {
  [ -d /run/systemd/system ]
}

# Process of the file, if it is still the one.
process() {
  [ -s "$dir/$1" ] || return 1
  pid=$(cat "$dir/$1")
  { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -qF "$dir/"
}

is_running() {
  if has_systemd; then systemctl is-active --quiet "$unit"; else process supervisor.pid; fi
}

# Ends the supervisor, which ends the agent. Containers go on.
stop_supervisor() {
  for file in supervisor.pid agent.pid; do
    process "$file" || continue
    kill -TERM "$pid" 2>/dev/null || :
    tries=0
    while process "$file"; do
      tries=$((tries + 1))
      [ "$tries" -lt 200 ] || kill -KILL "$pid" 2>/dev/null || :
      [ "$tries" -lt 300 ] || fail "process $pid of the agent does not end"
      sleep 0.1
    done
    rm -f "$dir/$file"
  done
}

stop_agent() {
  if has_systemd && [ -e "$unit_file" ]; then
    systemctl disable --quiet --now "$unit" || fail "systemd does not stop $unit"
    rm -f "$unit_file"
    systemctl daemon-reload
    systemctl reset-failed "$unit" 2>/dev/null || :
  fi
  stop_supervisor
}

start_agent() {
  if has_systemd; then
    install -m 0644 "$dir/unit" "$unit_file"
    systemctl daemon-reload
    systemctl enable --quiet "$unit"
    systemctl "$1" "$unit"
    return
  fi
  [ "$1" = start ] || stop_supervisor
  is_running && return
  setsid sh "$dir/supervise" "$dir" </dev/null >/dev/null 2>&1 9<&- &
  echo $! >"$dir/supervisor.pid"
}

remove_files() {
  if grep -F " $dir/" /proc/self/mountinfo >&2; then fail "something is still mounted in $dir"; fi
  state=/run/selvage/$(printf %s "$dir/data" | sha256sum | cut -c1-16)
  if grep -F " $state/" /proc/self/mountinfo >&2; then fail "something is still mounted in $state"; fi
  rm -rf --one-file-system "$state"
  rmdir /run/selvage 2>/dev/null || :
  for group in "/sys/fs/cgroup$argument" /sys/fs/cgroup/*"$argument"; do
    [ -n "$argument" ] && rmdir "$group" 2>/dev/null || :
  done
  find "$dir" -mindepth 1 -maxdepth 1 ! -name claim -exec rm -rf --one-file-system {} +
}

# Takes a file from the input. What comes late, after the machine was given back,
# has no directory to be in.
receive() {
  check_ours
  part=$dir/.$1.$$
  trap 'rm -f "$part"' EXIT
  cat >"$part"
  lock
  check_ours
}

[ "$(id -u)" = 0 ] || fail "needs root: set kaas.ssh.user to root, or to a user of sudo without a password"

case $command in
  status)
    [ ! -f "$claim" ] || cat "$claim"
    ;;
  claim)
    lock
    if [ -f "$claim" ]; then
      is_ours || fail "$(cat "$claim")" 5
      exit 0
    fi
    rm -f "$dir/.claim"
    if [ -n "$(ls -A "$dir" 2>/dev/null)" ]; then fail "$dir is not empty, and is of nobody known"; fi
    mkdir -p "$dir"
    echo "$controller $operation $argument" >"$dir/.claim"
    sync "$dir/.claim"
    mv "$dir/.claim" "$claim"
    ;;
  probe)
    lock
    check_ours
    echo "architecture $(uname -m)"
    if [ -f "$dir/selvage" ]; then echo "sha256 $(sha256sum <"$dir/selvage" | cut -d' ' -f1)"; fi
    if [ -s "$dir/data/joined/machine.pem" ]; then echo "joined yes"; fi
    if [ -e "$dir/data/kubernetes/member.binpb" ] || [ -e "$dir/data/kubernetes/resetting" ]; then
      echo "member yes"
    fi
    if is_running; then echo "running yes"; fi
    ;;
  program)
    receive selvage
    [ "$(sha256sum <"$part" | cut -d' ' -f1)" = "$argument" ] || fail "the program was not copied whole" 6
    chmod 0755 "$part"
    "$part" --version >/dev/null || fail "the program does not run on this machine" 7
    mv "$part" "$dir/selvage"
    ;;
  file)
    name=${argument%:*} length=${argument##*:}
    case $name in
      join-token | node.toml | supervise | unit) ;;
      *) fail "no file of ours: $name" ;;
    esac
    receive "$name"
    # Of a controller that was killed only the beginning may have come.
    [ "$(wc -c <"$part")" -eq "$length" ] || fail "$name was not copied whole" 6
    mv "$part" "$dir/$name"
    ;;
  start | restart)
    lock
    check_ours
    [ -x "$dir/selvage" ] || fail "the program is not there"
    start_agent "$command"
    ;;
  release)
    lock
    is_ours || exit 0
    stop_agent
    remove_files
    rm -f "$claim"
    rmdir "$dir"
    ;;
  *)
    fail "no command of ours: $command"
    ;;
esac
