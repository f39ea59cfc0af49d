//go:build system && !long

package packages

// archs are the processors that packages are built for. The second tier has the other one, too: its first build compiles
// everything anew.
var archs = []string{"amd64"}
