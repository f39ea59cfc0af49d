# Sets from git, unless the caller has: VERSION, which `ironvip version` prints; PACKAGE_VERSION, in the form and order of
# dpkg and rpm; SOURCE_DATE_EPOCH, the only time in a package. Plain sh, run in the project's folder.

VERSION=${VERSION:-$(git describe --tags --always --dirty)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

# v1.2.0 is 1.2.0; v1.2.0-rc.1 is 1.2.0~rc.1, which is older; 5 commits after v1.2.0, it is 1.2.0+5.gHASH, which is newer.
# Without a tag, it is 0.0.0+COMMITS.gHASH.
package_version() {
	v=${1#v}
	case $v in
	*.*.*) ;;
	*) v=0.0.0-$(git rev-list --count HEAD)-g$v ;;
	esac
	printf '%s\n' "$v" | sed -E 's/-dirty$/.dirty/; s/-([0-9]+)-(g[0-9a-f]+)/+\1.\2/; s/-/~/; s/-/./g'
}
PACKAGE_VERSION=${PACKAGE_VERSION:-$(package_version "$VERSION")}
export VERSION PACKAGE_VERSION SOURCE_DATE_EPOCH
