//go:build system

package program

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// The README shows the services of the demo as TestDemo expects them. The VM has no README.
func TestReadmeShowsTheDemo(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, row := range regexp.MustCompile(`(?m)^    (\w+ +127\.96\.0\.\d+)  `).FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, row[1])
	}
	if !slices.Equal(rows, demoRows) {
		t.Errorf("the README shows %q, the demo has %q", rows, demoRows)
	}
}
