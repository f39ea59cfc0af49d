# Functions for the scripts that make packages, images and releases. Plain sh, run in the project's folder after
# version.sh, with a temporary folder in $stage.

unset GOFLAGS # the version comes from -X alone: what else a build records depends on the checkout
export CGO_ENABLED=0

say() { echo "${0##*/}: $*" >&2; }
die() { say "$*"; exit 1; }
. test/fetch.sh

# tool NAME PACKAGE builds a tool from tools/NAME/go.mod into .cache/tools: the same bytes in any folder, because
# cyclonedx-gomod records its own checksum.
tool() {
	mkdir -p .cache/tools
	(cd "tools/$1" && again go mod download && go build -trimpath -buildvcs=false -o ../../.cache/tools/"$1" "$2")
}

# names are the programs that packages, images and releases have.
names='ironvip ironvip-announcer ironvip-proxy'

# build_programs ARCH... builds the programs for each processor in $programs/ARCH. The same commit makes the same bytes,
# in any folder. With PROGRAMS, an earlier call has built them there.
build_programs() {
	programs=${PROGRAMS:-$stage/programs}
	[ -z "${PROGRAMS-}" ] || return 0
	again go mod download
	for arch in "$@"; do
		for program in $names; do
			GOARCH=$arch go build -trimpath -buildvcs=false -tags nomsgpack -ldflags "-s -w -X main.version=$VERSION" -o "$programs/$arch/$program" ./cmd/$program
		done
	done
}
