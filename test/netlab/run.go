//go:build linux

package netlab

import (
	"os/exec"
	"strings"
)

// Output runs a program in the node and returns what it writes to both outputs.
func (n *Node) Output(args ...string) (string, error) { return n.Feed("", args...) }

// Feed is Output with an input.
func (n *Node) Feed(input string, args ...string) (out string, err error) {
	n.Do(func() {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdin = strings.NewReader(input)
		var b []byte
		b, err = cmd.CombinedOutput()
		out = string(b)
	})
	return out, err
}

// Run is Output for a program that must succeed.
func (n *Node) Run(args ...string) string {
	n.t.Helper()
	out, err := n.Output(args...)
	if err != nil {
		n.t.Fatalf("%s: %v: %v: %s", n.Name, args, err, out)
	}
	return out
}
