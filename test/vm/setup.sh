#!/bin/sh
# Prepares what vmrun needs: QEMU and the tools to ship into the VM (installed with apt-get when missing), Debian's
# cloud kernel (unpacked into .cache/vm/<version>, never installed) and .cache/vm/vmrun itself. Run it again at any
# time: without anything to do it takes a fraction of a second and no network. --update looks for a newer kernel.
#   test/vm/setup.sh [--update] [5.10|6.1|6.12]
# The kernel is .cache/vm/current, from this machine's package sources; with a version it is .cache/vm/<version>, from
# the Debian release that has it.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=$root/.cache/vm
packages="qemu-system-x86 kmod lz4 ipvsadm nftables iproute2 conntrack ipset jq"
meta=linux-image-cloud-amd64

say() { echo "vm setup: $*" >&2; }
die() { say "$*"; exit 1; }
. "$root/test/fetch.sh"

update=
if [ "${1-}" = --update ]; then
	update=1
	shift
fi
link=${1-current}
case "$link" in
current) suite= ;;
5.10) suite=bullseye ;;
6.1) suite=bookworm ;;
6.12) suite=bookworm-backports ;;
*) die "usage: $0 [--update] [5.10|6.1|6.12]" ;;
esac
[ $# -le 1 ] || die "usage: $0 [--update] [5.10|6.1|6.12]"
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || die "needs Linux on x86-64; this is $(uname -s) on $(uname -m). Remedy: run the VM's tests on such a machine."
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
rm -rf "$cache"/work.* # of a run that was killed

updated=
apt_update() {
	[ -z "$updated" ] || return 0
	command -v apt-get >/dev/null || die "no apt-get here. Remedy: use Debian 12, or install by hand: $packages."
	say "apt-get update"
	again as_root apt-get -qq update >&2 || die "apt-get update: see above. Remedy: check the network and /etc/apt/sources.list."
	updated=1
}

# mirror prints the address of the archive that this machine's package sources name.
mirror() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1; }

# release_lists prepares apt to know the kernels of one Debian release only, with lists of its own: nothing of this
# machine's apt changes, and what is installed here doesn't count.
apt_options=
release_lists() {
	command -v apt-get >/dev/null || die "no apt-get here. Remedy: use Debian 12."
	uri=$(mirror)
	[ -n "$uri" ] || { apt_update; uri=$(mirror); }
	[ -n "$uri" ] || die "apt's sources name no Debian archive. Remedy: add one to /etc/apt/sources.list."
	apt=$cache/apt/$suite
	mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
	: >"$apt/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main" >"$apt/sources.list"
	apt_options="-o Dir::Etc::SourceList=$apt/sources.list -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists=$apt/lists
		-o Dir::State::status=$apt/status -o Dir::Cache=$apt/cache -o Acquire::Languages=none -o APT::Sandbox::User=root"
	say "apt-get update for $suite"
	again apt-get $apt_options -qq update >&2 || die "apt-get update for $suite: see above. Remedy: check the network and the mirror in /etc/apt/sources.list."
	updated=1
}

# 1. The packages.
packages $packages
# depmod and the tools live in sbin, which a user's PATH may not have.
PATH=$PATH:/usr/sbin:/sbin

# 2. The kernel.
kernel_package() {
	apt-cache $apt_options depends "$meta" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1
}

# choose_kernel finds out which kernel is the newest by the package lists.
choose_kernel() {
	package=$(kernel_package)
	[ -n "$package" ] || { apt_update; package=$(kernel_package); }
	[ -n "$package" ] || die "no package $meta${suite:+ in $suite}. Remedy: use Debian 12's (bookworm) package sources, main and security."
	release=${package#linux-image-}
	version=$(apt-cache $apt_options show --no-all-versions "$package" | sed -n 's/^Version: //p')
	dest=$cache/$release-$version
}

fetch_kernel() {
	if [ -n "$suite" ]; then
		release_lists
	elif [ -n "$update" ]; then
		apt_update
	fi
	choose_kernel
	if [ ! -e "$dest/vmlinux" ]; then
		work=$(mktemp -d "$cache/work.XXXXXX")
		trap 'rm -rf "$work"' EXIT
		say "apt-get download $package ($version)"
		# Old package lists name files that the mirrors have dropped, and a kernel that has a successor of another name
		# since: a second try with new lists.
		(cd "$work" && apt-get $apt_options -qq download "$package" 2>"$work/err") || {
			apt_update
			choose_kernel
			rm -f "$work"/*.deb
			(cd "$work" && again apt-get $apt_options -qq download "$package" >&2) ||
				die "apt-get download $package: see above. Remedy: check the network and the mirror in /etc/apt/sources.list."
		}
		unpack_kernel "$work" "$release"
		rm -rf "$dest"
		mv "$work/out" "$dest"
		rm -rf "$work"
		trap - EXIT
	fi
	ln -sfn "$(basename "$dest")" "$cache/$link"
	say "kernel $release ($version) in $dest"
}

# le32 file offset: an unsigned little-endian number.
le32() { od -An -tu4 -j"$2" -N4 "$1" | tr -d ' '; }

unpack_kernel() {
	work=$1 release=$2
	dpkg-deb -x "$work"/*.deb "$work/deb" || die "dpkg-deb: the package is damaged. Remedy: run this again."
	mkdir "$work/out"
	mv "$work/deb/lib/modules/$release" "$work/out/modules"
	if [ -n "$(find "$work/out/modules" -name '*.ko.xz' | head -n 1)" ]; then # the guest loads plain ones
		packages xz-utils
		find "$work/out/modules" -name '*.ko.xz' -exec xz -d {} +
	fi
	# depmod wants lib/modules/<release> below its base folder.
	mkdir -p "$work/base/lib/modules"
	ln -s "$work/out/modules" "$work/base/lib/modules/$release"
	depmod -b "$work/base" -F "$work/deb/boot/System.map-$release" "$release" ||
		die "depmod: see above. Remedy: remove $cache and run this again."
	# The compressed kernel sits in the bzImage where the boot header says (Documentation/x86/boot.rst): after the
	# set-up sectors, at payload_offset, for payload_length bytes, of which the last four are its size. Uncompressed
	# (QEMU starts it by its PVH entry) it boots twice as fast.
	z=$work/deb/boot/vmlinuz-$release
	sectors=$(od -An -tu1 -j497 -N1 "$z" | tr -d ' ')
	offset=$(((sectors + 1) * 512 + $(le32 "$z" 584)))
	length=$(le32 "$z" 588)
	tail -c +$((offset + 1)) "$z" | head -c $((length - 4)) >"$work/payload"
	case "$(od -An -tx1 -N4 "$work/payload" | tr -d ' ')" in
	02214c18) unpack=lz4 ;;
	28b52ffd) packages zstd; unpack=zstd ;;
	*) die "the kernel in $release is compressed neither with lz4 nor with zstd. Remedy: teach unpack_kernel in $0 the new format." ;;
	esac
	$unpack -dqc "$work/payload" >"$work/out/vmlinux" || die "$unpack: can't unpack the kernel. Remedy: remove $cache and run this again."
	[ "$(head -c 4 "$work/out/vmlinux" | od -An -tx1 | tr -d ' ')" = 7f454c46 ] ||
		die "the unpacked kernel is no ELF file. Remedy: remove $cache and run this again."
}

if [ ! -e "$cache/$link/vmlinux" ] || [ -n "$update" ]; then
	fetch_kernel
fi

# 3. The runner. It is replaced, not overwritten: another run may be using it.
if [ ! -x "$cache/vmrun" ] || [ -n "$(find "$here" -maxdepth 1 -name '*.go' -newer "$cache/vmrun" | head -n 1)" ]; then
	command -v go >/dev/null || die "no go command. Remedy: install Go (see go.mod for the version) and put it on the PATH."
	(cd "$root" && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$cache/vmrun.new" ./test/vm) ||
		die "go build ./test/vm: see above. Remedy: for a missing module, run go mod download with the network there."
	mv "$cache/vmrun.new" "$cache/vmrun"
	say "built $cache/vmrun"
fi
