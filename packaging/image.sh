#!/bin/sh
# Writes the image of `make image` as an OCI image layout: packaging/image.sh [DIR], by default bin/image. It needs no
# container engine. ARCHS selects from "amd64 arm64". The same commit makes the same bytes.
set -eu
umask 022
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-bin/image}")
[ ! -e "$out" ] || [ -e "$out/oci-layout" ] || { echo "image.sh: $out exists and is no image layout" >&2; exit 1; }
rm -rf "$out"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
. packaging/version.sh
. packaging/build.sh

archs=${ARCHS:-amd64 arm64}
build_programs $archs
mkdir -p "$(dirname "$out")"
set --
for arch in $archs; do set -- "$@" "$arch=$programs/$arch"; done
go run ./packaging/image -out "$out" -version "$VERSION" -created "$SOURCE_DATE_EPOCH" "$@"
