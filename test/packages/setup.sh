#!/bin/sh
# Makes a small Debian with systemd in .cache/packages/root, from the mirrors of this host. The tests install the
# packages in copies of it. Without anything to do it needs no network.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
cache=$root/.cache/packages

say() { echo "packages setup: $*" >&2; }
die() { say "$*"; exit 1; }
. "$root/test/fetch.sh"

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
as_root rm -rf "$cache"/work.* # of a run that was killed
[ ! -e "$cache/root" ] || exit 0
packages mmdebstrap

make_root() {
	work=$(mktemp -d "$cache/work.XXXXXX")
	as_root apt-get -qq update >&2 || say "apt-get update failed: see above; continuing with the existing lists"
	apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
		as_root mmdebstrap --quiet --variant=essential --include=systemd,passwd --aptopt='Acquire::Retries "3"' "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$work/root" - >&2 &&
		mv "$work/root" "$cache/root" && rmdir "$work"
}
say "mmdebstrap: a Debian with systemd"
again make_root || die "mmdebstrap failed: see above. Remedy: check the network and /etc/apt/sources.list."
