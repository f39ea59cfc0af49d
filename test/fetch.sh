# Functions of the scripts that fetch from elsewhere, to be sourced: what breaks off once is fetched again, so that no
# test fails by a mirror's or a proxy's bad moment. Plain sh, in which "say" and "die" are the caller's.

# again COMMAND... runs it up to four times, with longer pauses, until it succeeds; else it is false. The last pause is
# for what a new machine does by itself, such as an apt-get update that locks the lists.
again() {
	for pause in 5 20 60; do
		"$@" && return 0
		say "that failed; again in $pause s"
		sleep "$pause"
	done
	"$@"
}

# as_root COMMAND... runs it as root.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		DEBIAN_FRONTEND=noninteractive "$@"
	elif command -v sudo >/dev/null; then
		sudo DEBIAN_FRONTEND=noninteractive "$@"
	else
		die "needs root for: $*. Remedy: run that as root, or install sudo."
	fi
}

# apt_install PACKAGE... installs with new lists: old ones name files that the mirrors have dropped. Where a list can't
# be had the packages may still be; another apt's lock is waited for.
apt_install() {
	as_root apt-get -qq update >&2 || say "apt-get update: see above; going on with the lists that are there"
	as_root apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" >&2
}

# packages NAME... installs those Debian packages that are not there. dpkg-query prints a line for each package that is
# known, and fails where one is not; only "ii" ones are installed.
packages() {
	installed=" $({ dpkg-query -W -f '${db:Status-Abbrev}${Package} ' "$@" 2>/dev/null || :; } | tr -s ' ' '\n' | paste -sd ' ' -) "
	missing=
	for p in "$@"; do
		case "$installed" in
		*" ii $p "*) ;;
		*) missing="$missing $p" ;;
		esac
	done
	[ -n "$missing" ] || return 0
	command -v apt-get >/dev/null || die "no apt-get here. Remedy: use Debian 12, or install by hand:$missing."
	say "installing$missing"
	again apt_install $missing ||
		die "apt-get install$missing: see above. Remedy: check the network and /etc/apt/sources.list, or install these packages by hand, then run this again."
}
