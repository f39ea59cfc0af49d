#!/bin/sh
# Writes repositories of packages for a web server: packaging/repository.sh DIR moves the packages of DIR to DIR/apt and
# DIR/rpm, each with its index. With SIGN_KEY, a key of gpg, the indexes and the rpm's repository are signed, and DIR/key.asc
# is the public key. Without it, the same packages make the same bytes. It needs createrepo_c.
set -eu
umask 022
out=$(realpath "$1")
: "${SOURCE_DATE_EPOCH:?the time of the indexes, in seconds}"

sign() { gpg --batch --yes --local-user "$SIGN_KEY" "$@"; }

mkdir "$out/apt" "$out/rpm"
mv "$out"/*.deb "$out/apt"
mv "$out"/*.rpm "$out/rpm"

cd "$out/apt"
for deb in *.deb; do
	dpkg-deb --field "$deb"
	printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "$deb" "$(stat -c %s "$deb")" "$(sha256sum "$deb" | cut -d' ' -f1)"
done >Packages
{
	echo "Origin: ironvip"
	echo "Label: ironvip"
	echo "Suite: stable"
	echo "Architectures: $(for deb in *.deb; do dpkg-deb --field "$deb" Architecture; done | sort -u | paste -sd' ')"
	echo "Date: $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
	echo "SHA256:"
	echo " $(sha256sum Packages | cut -d' ' -f1) $(stat -c %s Packages) Packages"
} >Release

cd "$out/rpm"
touch -d "@$SOURCE_DATE_EPOCH" -- *.rpm # the index has their times
createrepo_c --quiet --no-database --revision="$SOURCE_DATE_EPOCH" --set-timestamp-to-revision .

[ -n "${SIGN_KEY-}" ] || exit 0
cd "$out"
sign --armor --output key.asc --export "$SIGN_KEY"
sign --clearsign --output apt/InRelease apt/Release
sign --armor --detach-sign --output rpm/repodata/repomd.xml.asc rpm/repodata/repomd.xml
