package keepalived

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// convert converts a text in a file of its own, which notes call "f".
func convert(t testing.TB, text string) (migrate.Result, string) {
	t.Helper()
	return convertIn(t, t.TempDir(), text)
}

// convertIn is convert with a folder of the file.
func convertIn(t testing.TB, dir, text string) (migrate.Result, string) {
	t.Helper()
	file := filepath.Join(dir, "f")
	must.Succeed(t, os.WriteFile(file, []byte(text), 0o644))
	result := must.Get(convertWithin(file, 8<<20))(t)
	var notes strings.Builder
	for _, n := range result.Notes {
		notes.WriteString(strings.ReplaceAll(n.String(), dir+"/", "") + "\n")
	}
	return result, notes.String()
}

// Mistakes in the text are notes with a line, and the rest is converted.
func TestMistakes(t *testing.T) {
	good := "virtual_server 10.0.0.1 80 {\n protocol TCP\n real_server 10.1.0.1 80 { weight 2 }\n}\n"
	for _, c := range []struct{ name, text, note string }{
		{"never closed", good + "virtual_server 10.0.0.2 80 {\n", "f:5: { is never closed"},
		{"closed twice", good + "}\n", "f:5: } has no matching {"},
		{"no keyword", good + "{ a b }\n", "f:5: { without a keyword"},
		{"unknown keyword", good + "virtual_servr 10.0.0.2 80 { }\n", `f:5: unknown keyword "virtual_servr 10.0.0.2 80"`},
		{"unknown definition", good + "virtual_server $VIP 80 { }\n", "f:5: $VIP is not defined"},
		{"no address", good + "virtual_server example.com 80 { }\n", `f:5: "example.com" is not an address`},
		{"no port", good + "virtual_server 10.0.0.2 http { }\n", `f:5: "http" is not a port`},
		{"includes nothing", good + "include none/*.conf\n", "f:5: include none/*.conf: no such file"},
		{"includes itself", good + "include f\ninclude f\n", "f:6: include f: "},
		{"deep", good + strings.Repeat("a {\n", 100) + strings.Repeat("}\n", 100), "blocks are nested more than 32 times"},
		{"range too large", "virtual_server_group g { 10.0.0.1-10.1.0.1 80 }\n" + good + "virtual_server group g { }\n", "f:1: \"10.0.0.1-10.1.0.1\" is not a range of at most 4096 addresses"},
	} {
		t.Run(c.name, func(t *testing.T) {
			result, notes := convert(t, c.text)
			expect.Contains(t, notes, c.note, "notes:\n%s\nwithout", notes)
			if len(result.Services) == 0 || len(result.Services[0].Backends) != 1 || *result.Services[0].Backends[0].Weight != 2 {
				t.Errorf("the rest is not converted: %+v", result.Services)
			}
		})
	}
}

// Definitions are replaced where they are used, those in their values too.
func TestDefinitionsInDefinitions(t *testing.T) {
	text := "$BASE=10.2.${SUB}\n$SUB=0\n$VS=${BASE}.100 $PORT\n$PORT=80\n" +
		"virtual_server $VS {\n protocol TCP\n real_server 10.1.0.1 80 { }\n}\n" +
		"$SUB=10\nvirtual_server ${BASE}.$LAST 80 {\n protocol TCP\n real_server 10.1.0.1 80 { }\n}\n"
	result, notes := convert(t, "$LAST=100\n"+text)
	want := []string{"10.2.0.100", "10.2.10.100"}
	var got []string
	for _, a := range result.Addresses {
		got = append(got, a.String())
	}
	if !slices.Equal(got, want) || notes != "" {
		t.Errorf("addresses %v, want %v; notes %s", got, want, notes)
	}
}

// Definitions that double each other, that contain each other, or that many lines use, end at a bound.
func TestDefinitionsDoNotExplode(t *testing.T) {
	const good = "virtual_server 10.0.0.1 80 {\n protocol TCP\n real_server 10.1.0.1 80 { weight 2 }\n}\n"
	var doubling strings.Builder
	doubling.WriteString("$A0=" + strings.Repeat("x", 100) + "\n")
	for i := range 16 { // 6.5 MB
		fmt.Fprintf(&doubling, "$A%d=$A%d$A%d\n", i+1, i, i)
	}
	for _, c := range []struct{ name, text, note string }{
		{"doubling", doubling.String() + "virtual_server $A16 80 { }\n" + good, "f:18: longer than 1024 KiB after its definitions have been replaced: ignored\n"},
		{"a large value", "$A=" + strings.Repeat("x", 1<<19) + "\nx $A$A$A\n" + good, "f:2: longer than 1024 KiB after its definitions have been replaced: ignored\n"},
		{"contain each other", "$A=$B\n$B=$A\nx $A\n" + good, "f:3: definitions contain each other more than 32 times: ignored\n"},
		{"many lines", good + "$A=" + strings.Repeat("x", 900<<10) + "\n" + strings.Repeat("x $A\n", 12), "8 MiB, with what is included and replaced: the rest is not read\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			result, notes := convert(t, c.text)
			if !strings.Contains(notes, c.note) || len(result.Services) != 1 {
				t.Errorf("%d services, notes without %q: %.500s", len(result.Services), c.note, notes)
			}
		})
	}
}

// Files that include many files, or each other, end at a bound.
func TestIncludesDoNotExplode(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		note  string
		notes int
	}{
		{"itself", map[string]string{"f": "include f\ninclude ./f\n"}, "f:1: include f: ", 2},
		{"each other", map[string]string{"f": "include g\ninclude g\n", "g": "include f\ninclude f\n"}, "g:1: include f: ", 2},
		{"many", map[string]string{"f": strings.Repeat("include g\n", 40), "g": strings.Repeat("include h\n", 40), "h": "\n"},
			"the configuration has more than 1000 files, ", 1},
		{"deep", chain(40), "include n33: files include each other more than 32 times: not read", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.files {
				must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
			}
			result := must.Get(Convert(filepath.Join(dir, "f")))(t)
			var notes []string
			for _, n := range result.Notes {
				notes = append(notes, n.String())
			}
			if len(notes) != c.notes || !strings.Contains(notes[0], c.note) {
				t.Errorf("%d notes, want %d with %q: %.1000q", len(notes), c.notes, c.note, notes)
			}
		})
	}
}

// chain returns n files that each include the next.
func chain(n int) map[string]string {
	files := map[string]string{"f": "include n1\n"}
	for i := range n {
		files[fmt.Sprintf("n%d", i+1)] = fmt.Sprintf("include n%d\n", i+2)
	}
	return files
}

// A large file is converted whole.
func TestLargeFile(t *testing.T) {
	var text strings.Builder
	n := 0
	for ; text.Len() < 1<<20; n++ {
		fmt.Fprintf(&text, "virtual_server 10.%d.%d.%d 80 {\n  protocol TCP\n  delay_loop 5\n  lb_kind NAT\n  real_server 10.200.0.1 80 {\n    TCP_CHECK {\n      connect_timeout 2\n    }\n  }\n}\n", n>>16&255, n>>8&255, n&255)
	}
	result, notes := convert(t, text.String())
	if len(result.Services) != n || len(result.Addresses) != n || notes != "" {
		t.Errorf("%d services, %d addresses, want %d; notes %.200s", len(result.Services), len(result.Addresses), n, notes)
	}
}

func FuzzConvert(f *testing.F) {
	sample := must.Get(os.ReadFile("testdata/keepalived.conf"))(f)
	f.Add(string(sample))
	f.Add("a { b {\n}\n} } {\n")
	f.Add("$A=$A\n$A\n@x\n\"unclosed\nvirtual_server \"a b\" 1-2 {")
	f.Fuzz(func(t *testing.T, text string) {
		result, _ := convert(t, text)
		for _, n := range result.Notes {
			expect.True(t, n.Text != "", "empty note: %v", n)
		}
	})
}

// Definitions of some hosts, and those of several lines, are used like others. A statement that
// generates lines is noted with its line.
func TestDefinitionsOfHostsAndOfLines(t *testing.T) {
	result, notes := convert(t, "@main $VIP=10.0.0.1\n"+
		"$SERVERS= \\\n real_server 10.1.0.1 80 { weight 2 } \\\n real_server 10.1.0.2 80 { \\\n } \n"+
		"virtual_server $VIP 80 {\n protocol TCP\n weight 9\n $SERVERS\n ~SEQ(n, 1, 9) real_server 10.1.1.$n 80 { }\n}\n")
	must.Len(t, result.Services, 1, "%+v\n%s", result.Services, notes)
	s := result.Services[0]
	var backends []string
	for _, b := range s.Backends {
		backends = append(backends, fmt.Sprintf("%s %d", b.Address, *b.Weight))
	}
	if want := []string{"10.1.0.1 2", "10.1.0.2 9"}; !slices.Equal(backends, want) || s.VIPs[0] != "10.0.0.1" {
		t.Errorf("backends %q, want %q, at %q", backends, want, s.VIPs)
	}
	for _, note := range []string{`f:1: "$VIP=10.0.0.1" applies to some hosts only (@main)`, `f:10: "~SEQ(n, 1, 9) real_server 10.1.1.$n 80 { }" is not converted: write the lines out`} {
		expect.Contains(t, notes, note, "no note %q:\n", note)
	}
	if strings.Contains(notes, "weight") || strings.Contains(notes, "not defined") {
		t.Errorf("notes:\n%s", notes)
	}
}

// Scripts of VRRP become hooks for the VIPs of their instance or group, with the arguments that keepalived passes.
func TestNotify(t *testing.T) {
	result, notes := convert(t, `vrrp_sync_group G 1 {
 group { VI_1
  VI_2 }
 notify "/bin/all --x"
}
vrrp_instance VI_1 {
 priority 150
 virtual_ipaddress { 10.0.0.1/24
  2001:db8::1/64 }
 notify_master "/bin/up 'a b'" root
 notify_backup /bin/down
 notify_fault /bin/fault
 notify relative
}
vrrp_instance VI_2 {
 virtual_ipaddress { 10.0.0.2 }
 notify /bin/state
 notify /bin/again
}
vrrp_instance VI_3 {
 notify_master /bin/none
}
`)
	var got []string
	for _, h := range result.Hooks {
		got = append(got, fmt.Sprintf("%s %s %s %q", h.Name, strings.Join(h.Events, ","), strings.Join(h.Objects, ","), h.Command))
	}
	expect.SameList(t, got, []string{
		`vi-1-master vip_announced 10.0.0.1,2001:db8::1 ["/bin/up" "a b"]`,
		`vi-1-backup vip_withdrawn 10.0.0.1,2001:db8::1 ["/bin/down"]`,
		`vi-2-master vip_announced 10.0.0.2 ["/bin/state" "INSTANCE" "VI_2" "MASTER" "100"]`,
		`vi-2-backup vip_withdrawn 10.0.0.2 ["/bin/state" "INSTANCE" "VI_2" "BACKUP" "100"]`,
		`vi-2-master-2 vip_announced 10.0.0.2 ["/bin/again" "INSTANCE" "VI_2" "MASTER" "100"]`,
		`vi-2-backup-2 vip_withdrawn 10.0.0.2 ["/bin/again" "INSTANCE" "VI_2" "BACKUP" "100"]`,
		`g-master vip_announced 10.0.0.1,10.0.0.2,2001:db8::1 ["/bin/all" "--x" "GROUP" "G" "MASTER" "0"]`,
		`g-backup vip_withdrawn 10.0.0.1,10.0.0.2,2001:db8::1 ["/bin/all" "--x" "GROUP" "G" "BACKUP" "0"]`,
	})
	for _, says := range []string{
		"f:10: notify_master is a [[hook]]: the program runs once for each VIP", "f:12: notify_fault is not converted: a VIP that leaves this host is the event vip_withdrawn",
		"f:13: notify is not converted: a hook has the absolute path", "f:21: notify_master is not converted", "f:4: notify is a [[hook]]",
	} {
		expect.Contains(t, notes, says)
	}
	expect.False(t, strings.Contains(notes, "unknown keyword"), "%s", notes)
}
