package ipvsadm

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/must"
)

// A value that isn't a number is a note, and the default stays.
func TestValuesThatAreNotNumbers(t *testing.T) {
	for _, c := range []struct{ service, server, note string }{
		{"-p 5m", "", `rules:1: -p "5m" is not a number of seconds: 300 is used`},
		{"-p 0", "", `rules:1: -p "0" is not a number of seconds: 300 is used`},
		{"-p", "", ""},
		{"-p 300", "-w x", `rules:2: the weight "x" is not converted`},
		{"-p 300", "-x 1k", `rules:2: the upper threshold "1k" is not converted`},
		{"-p 300", "-x 99999999999", `rules:2: the upper threshold "99999999999" is not converted`},
	} {
		result := Convert("rules", "-A -t 10.0.0.1:80 "+c.service+"\n-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m "+c.server+"\n")
		s, notes := result.Services[0].Service, ""
		for _, n := range result.Notes {
			notes += n.String() + "\n"
		}
		if time.Duration(*s.Affinity.Timeout) != 5*time.Minute || s.Backends[0].Weight != nil || s.Backends[0].MaxConnections != 0 ||
			!strings.Contains(notes, c.note) || c.note == "" && notes != "" {
			t.Errorf("%q %q: %+v, notes %q, want %q", c.service, c.server, s, notes, c.note)
		}
	}
}

func FuzzConvert(f *testing.F) {
	sample := must.Get(os.ReadFile("testdata/rules"))(f)
	f.Add(string(sample))
	f.Fuzz(func(t *testing.T, text string) {
		for _, n := range Convert("rules", text).Notes {
			if n.Line == 0 || n.Text == "" {
				t.Errorf("note without a line or text: %v", n)
			}
		}
	})
}
