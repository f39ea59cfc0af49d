package haproxy

import (
	"os"
	"testing"
)

func FuzzConvert(f *testing.F) {
	sample, err := os.ReadFile("testdata/haproxy.cfg")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(sample))
	f.Fuzz(func(t *testing.T, text string) {
		for _, n := range Convert("haproxy.cfg", text).Notes {
			if n.Line == 0 || n.Text == "" {
				t.Errorf("note without a line or text: %v", n)
			}
		}
	})
}
