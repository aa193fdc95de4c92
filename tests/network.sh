#!/usr/bin/env bash
# A command in a network of its own that counts what it sends: tests/network.sh COUNTERS READ-ONLY COMMAND...
# Everything goes to an interface behind which nobody answers; COUNTERS becomes the kernel's /proc/net/dev after the command.
# READ-ONLY: a folder that the command cannot write, even as root. Needs root, unshare and ip. Exit code: the command's.
set -euo pipefail
if [ "${1:-}" != --inside ]; then exec unshare --net --mount "$0" --inside "$@"; fi
counters=$2 folder=$3
shift 3
mount --bind "$folder" "$folder"
mount -o remount,bind,ro "$folder"
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 # else the kernel itself announces the interface
ip link set lo up
ip link add outside type veth peer name nobody
ip address add 192.0.2.1/24 dev outside
ip link set nobody up
ip link set outside up
ip route add default via 192.0.2.2
status=0
"$@" || status=$?
cat /proc/net/dev > "$counters"
exit $status
