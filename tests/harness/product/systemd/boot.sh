#!/bin/sh
# Becomes systemd, as process 1 of namespaces of its own (`unshare --propagation unchanged`). It shares
# /run/netns, /run/lb, /var/lib/lb and bpffs with the machine, knows only the units of the folder $1/units and the users
# of $1/users, and can write to nothing else.
set -eu
site=$1

# Cells that are made here must be seen outside: only this stays shared.
while read -r _ _ _ _ place _; do
    case $place in /run/netns | /run/netns/*) ;; *) mount --make-private "$place" ;; esac
done < /proc/self/mountinfo

mkdir -p /run/lb /var/lib/lb "$site/run"
mount -t tmpfs -o mode=755 run "$site/run"
mkdir "$site/run/netns" "$site/run/lb" "$site/run/site"
mount --rbind /run/netns "$site/run/netns"
mount --bind /run/lb "$site/run/lb"
mount --bind "$site" "$site/run/site"
mount -n --move "$site/run" /run
mount --bind /var/lib/lb /var/lib/lb
mount -t tmpfs log /var/log
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=1777 tmp /var/tmp
mkdir -p "$site"
mount --bind /run/site "$site"

for file in passwd group; do mount --bind "$site/users/etc/$file" "/etc/$file"; done
mount -o remount,bind,ro /
mount -t proc proc /proc
umount -R -l /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup

exec env -i container=lb PATH="$PATH" SYSTEMD_UNIT_PATH="$site/units" \
    SYSTEMD_GENERATOR_PATH=/run/none SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/run/none \
    /lib/systemd/systemd --system --unit=test.target --log-target=console --show-status=false
