#!/bin/sh
# Makes connect.o of connect.c, or the file that is named. Run by `go generate ./connect`; a test compares the result with
# the committed one. The packages are clang-14, llvm-14 and linux-libc-dev of Debian 12.
set -eu
cd "$(dirname "$0")"
out=${1:-connect.o}
clang-14 -O2 -g -Wall -Werror -target bpfel -I"/usr/include/$(uname -m)-linux-gnu" -fdebug-compilation-dir=. -c connect.c -o "$out"
llvm-strip-14 -g "$out"
