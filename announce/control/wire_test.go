package control

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/mirror"
	"github.com/ironvip/ironvip/test/must"
)

var update = flag.Bool("update", false, "write testdata/wire.txt")

// fields appends the fields of a type of this module that gob sends, with their types.
func fields(out []string, of reflect.Type) []string {
	for of.Kind() == reflect.Slice || of.Kind() == reflect.Pointer || of.Kind() == reflect.Array {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || !strings.Contains(of.PkgPath(), "ironvip") {
		return out
	}
	for f := range of.Fields() {
		if line := fmt.Sprintf("%s.%s %s %s", of, f.Name, f.Type, f.Type.Kind()); f.IsExported() && !slices.Contains(out, line) {
			out = fields(append(out, line), f.Type)
		}
	}
	return out
}

// An agent and an announcer of one protocol know all fields of each other. A new field is fine if the other side may ignore it.
func TestFieldsOfAProtocol(t *testing.T) {
	now := []string{fmt.Sprint("protocol ", mirror.Protocol)}
	for _, of := range []any{announce.Settings{}, announce.Eligible{}, announce.Announcement{}, announce.Announced{}, announce.Peer{}, Stats{}} {
		now = fields(now, reflect.TypeOf(of))
	}
	const file = "testdata/wire.txt"
	if *update {
		must.Succeed(t, os.WriteFile(file, []byte(strings.Join(now, "\n")+"\n"), 0o644))
	}
	for line := range strings.Lines(string(must.Get(os.ReadFile(file))(t))) {
		if line = strings.TrimSpace(line); !slices.Contains(now, line) {
			t.Errorf("%s is gone or another one: raise mirror.Protocol, then run this test with -update", line)
		}
	}
}
