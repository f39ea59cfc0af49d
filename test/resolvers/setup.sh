#!/bin/sh
# Unpacks Debian's systemd-resolved, with the library of its version, into .cache/resolved/<version>. It is never
# installed: the installation would replace /etc/resolv.conf of this host. Without anything to do it needs no network.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=$root/.cache/resolved

say() { echo "resolvers setup: $*" >&2; }
die() { say "$*"; exit 1; }
. "$root/test/fetch.sh"

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
rm -rf "$cache"/work.* # of a run that was killed
[ ! -x "$cache/current/lib/systemd/systemd-resolved" ] || exit 0
command -v apt-get >/dev/null || die "no apt-get here. Remedy: use Debian 12."

download() {
	rm -f "$work"/*.deb
	(cd "$work" && apt-get -qq download systemd-resolved libsystemd-shared >&2)
}

# refreshed downloads with new package lists: old ones name files that the mirrors have dropped.
refreshed() { as_root apt-get -qq update >&2 && download; }

work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
say "apt-get download systemd-resolved libsystemd-shared"
download 2>/dev/null || again refreshed || die "apt-get download: see above. Remedy: check the network and the mirror in /etc/apt/sources.list."
for deb in "$work"/*.deb; do
	dpkg-deb -x "$deb" "$work/out" || die "dpkg-deb: the package is damaged. Remedy: run this again."
done
version=$(dpkg-deb -f "$work"/systemd-resolved_*.deb Version)
rm -rf "${cache:?}/$version"
mv "$work/out" "$cache/$version"
ln -sfn "$version" "$cache/current"
say "systemd-resolved $version in $cache/$version"
