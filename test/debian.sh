#!/bin/sh
# Makes .cache/debian/root, a small Debian 12 with systemd, from the mirrors of this host. Tests install the packages in
# copies of it, and boot it in the VM. It downloads about 70 MB once, and again when this file changes.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cache=$root/.cache/debian
programs=apt,python3-apt,systemd-sysv,dbus,kmod,iproute2,nftables,ipvsadm,procps,passwd

say() { echo "debian: $*" >&2; }
die() { say "$*"; exit 1; }
. "$root/test/fetch.sh"

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
made=$(sha256sum "$0" | cut -c1-12)
if [ ! -e "$cache/$made" ]; then
	as_root find "$cache" -mindepth 1 ! -path "$cache/lock" -delete # of another version of this file, or a run that was killed
	packages mmdebstrap
	say "mmdebstrap"
	as_root apt-get -qq update >&2 || say "apt-get update failed: see above; continuing with the existing lists"
	set -- --quiet --variant=essential --include="$programs" --aptopt='Acquire::Retries "3"'
	for docs in doc man info locale zoneinfo; do set -- "$@" --dpkgopt="path-exclude=/usr/share/$docs/*"; done
	mirrors=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian')
	make_root() {
		as_root rm -rf "$cache/new"
		printf '%s\n' "$mirrors" | as_root mmdebstrap "$@" bookworm "$cache/new" - >&2
	}
	again make_root "$@" || die "mmdebstrap: see above. Remedy: check the network and /etc/apt/sources.list."
	mv "$cache/new" "$cache/$made"
fi
ln -sfn "$made" "$cache/root"
