package bugreport

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"testing"
)

// A part that is too large is cut at a line, so that no part of a secret is left, and noted.
func TestBugreportCutsParts(t *testing.T) {
	var archive bytes.Buffer
	r := &report{tar: tar.NewWriter(&archive), dir: "r", clean: New(), most: 40}
	r.add("big.txt", "a program", func(out io.Writer) error {
		_, err := io.Copy(out, strings.NewReader("a line that stays\ntoken = n0body-may-see-this-long-one\nmore\n"))
		return err
	})
	if r.err != nil || r.tar.Close() != nil {
		t.Fatal(r.err)
	}
	if h, err := tar.NewReader(&archive).Next(); err != nil || h.Size != int64(len("a line that stays\n")) || !strings.Contains(r.parts.String(), "a program: cut after 40 bytes") {
		t.Errorf("%+v, %v, %s", h, err, r.parts.String())
	}
}
