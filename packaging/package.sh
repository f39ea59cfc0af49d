#!/bin/sh
# Writes the packages of `make package`: packaging/package.sh [DIR], by default bin/packages. ARCHS selects from "amd64
# arm64"; it must contain the processor of this host. The same commit makes the same bytes (docs/decisions/26).
set -eu
umask 022
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-bin/packages}")
archs=${ARCHS:-amd64 arm64}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
. packaging/version.sh
. packaging/build.sh

tool nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm
build_programs $archs
ironvip=$programs/$(go env GOHOSTARCH)/ironvip
nfpm=$PWD/.cache/tools/nfpm

# The files that are the same for every processor.
common=$stage/common
mkdir -p "$common/man" "$common/completion"
"$ironvip" man "$common/man"
gzip -9n "$common"/man/*
for shell in bash zsh fish; do "$ironvip" completion $shell >"$common/completion/$shell"; done
gzip -9nc CHANGELOG.md >"$common/CHANGELOG.md.gz"
for unit in configs/systemd/*.service configs/systemd/*.socket; do
	sed 's|/usr/local/|/usr/|; s|/etc/systemd/system/|/usr/lib/systemd/system/|' "$unit" >"$common/${unit##*/}"
done
cp -R configs packaging/scripts packaging/nfpm.yaml "$common"

newline='
'
mkdir -p "$out"
for arch in $archs; do
	root=$stage/$arch
	cp -R "$common" "$root"
	for program in $names; do cp "$programs/$arch/$program" "$root"; done
	chmod -R u=rwX,go=rX "$root"
	find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	for format in deb rpm; do
		summary=
		if [ $format = deb ]; then summary="virtual IPs for services$newline"; fi
		(cd "$root" && GOARCH=$arch SUMMARY_LINE=$summary "$nfpm" package --config nfpm.yaml --packager $format --target "$out/")
	done
done
