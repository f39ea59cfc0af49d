#!/bin/sh
# Makes .cache/vm/debian.tar, a Debian 12 root with systemd for vmrun's -root. It downloads about 60 MB once, and again
# when the list below changes.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=$root/.cache/vm
programs=systemd-sysv,dbus,kmod,iproute2,nftables,ipvsadm,procps

say() { echo "vm debian: $*" >&2; }
die() { say "$*"; exit 1; }
. "$root/test/fetch.sh"

mkdir -p "$cache"
exec 9>"$cache/debian.lock"
flock 9
made=debian-$(sha256sum "$here/debian.sh" | cut -c1-12).tar
if [ ! -e "$cache/$made" ]; then
	packages mmdebstrap
	rm -f "$cache"/debian-*.tar "$cache/debian.new.tar"
	set -- --variant=essential --include="$programs" --customize-hook='rm -rf "$1"/var/cache/apt "$1"/var/lib/apt/lists'
	for docs in doc man info locale zoneinfo; do set -- "$@" --dpkgopt="path-exclude=/usr/share/$docs/*"; done
	say "mmdebstrap"
	again mmdebstrap --quiet "$@" bookworm "$cache/debian.new.tar" || die "mmdebstrap: see above. Remedy: check the network and /etc/apt/sources.list."
	mv "$cache/debian.new.tar" "$cache/$made"
fi
ln -sfn "$made" "$cache/debian.tar"
