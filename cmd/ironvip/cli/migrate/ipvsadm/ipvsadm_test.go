package ipvsadm

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// A value that isn't a number is a note, and the default stays.
func TestValuesThatAreNotNumbers(t *testing.T) {
	for _, c := range []struct{ service, server, note string }{
		{"-p 5m", "", `rules:1: -p "5m" is not a number from 1 to 2147483647: 300 is used`},
		{"-p 0", "", `rules:1: -p "0" is not a number from 1 to 2147483647: 300 is used`},
		{"-p", "", ""},
		{"-p 300", "-w x", `rules:2: the weight "x" is not a number from`},
		{"-p 300", "-x 1k", `rules:2: the upper threshold "1k" is not a number from`},
		{"-p 300", "-x 99999999999", `rules:2: the upper threshold "99999999999" is not a number from`},
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

// Commands of the kernel have their service in notes.
func TestCommandsOfTheKernel(t *testing.T) {
	result := ConvertCommands([][]string{{"-A", "-f", "7", "-s", "rr"}, {"-A", "-t", "10.0.0.1:80", "-s", "lblc"}})
	expect.Equal(t, summary(result.Services), "10.0.0.1:80 wlc")
	expect.Equal(t, fmt.Sprint(result.Notes), "[ipvs -f 7: the service of packet mark 7 is not converted: define a service for each address, or one with a range of ports "+
		"ipvs -t 10.0.0.1:80: the scheduler lblc is not available: wlc is used]")
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

// summary returns the services in few words: "10.0.0.1:80 rr 10.1.0.1*2".
func summary(services []migrate.Service) string {
	var out []string
	for _, s := range services {
		text := fmt.Sprintf("%s:%s %s", s.VIPs[0], s.Ports[0].Port, s.Scheduler)
		for _, b := range s.Backends {
			text += " " + b.Address
			if b.Weight != nil {
				text += fmt.Sprintf("*%d", *b.Weight)
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// Every way to write a rule is read, in the order in which ipvsadm applies them.
func TestCommands(t *testing.T) {
	const service, server = "-A -t 10.0.0.1:80 -s wrr\n", "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m\n"
	for _, c := range []struct{ name, text, want, note string }{
		{"values that touch", "-A -t10.0.0.1:80 -srr\n-a -t10.0.0.1:80 -r10.1.0.1:80 -m -w7\n", "10.0.0.1:80 rr 10.1.0.1*7", ""},
		{"options that touch", "-At 10.0.0.1:80 -srr\n-at 10.0.0.1:80 -r 10.1.0.1:80 -mw 7\n", "10.0.0.1:80 rr 10.1.0.1*7", ""},
		{"long options", "--add-service --tcp-service=10.0.0.1:80 --scheduler=rr\n--add-server --tcp-service 10.0.0.1:80 --real-server 10.1.0.1:80 --masquerading --weight=7\n", "10.0.0.1:80 rr 10.1.0.1*7", ""},
		{"edit a server", service + server + "-e -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 9\n", "10.0.0.1:80 wrr 10.1.0.1*9", ""},
		{"edit a server that isn't there", service + server + "-e -t 10.0.0.1:80 -r 10.1.0.2:80 -m\n", "10.0.0.1:80 wrr 10.1.0.1", "rules:3: -e 10.1.0.2:80 is ignored"},
		{"edit a service", service + server + "-E -t 10.0.0.1:80 -s lc\n", "10.0.0.1:80 lc 10.1.0.1", ""},
		{"edit a service that isn't there", service + server + "-E -t 10.0.0.2:80 -s lc\n", "10.0.0.1:80 wrr 10.1.0.1", "rules:3: -E 10.0.0.2:80 is ignored"},
		{"add a service twice", service + server + service, "10.0.0.1:80 wrr 10.1.0.1", "rules:3: -A 10.0.0.1:80 is ignored"},
		{"add a server twice", service + server + server, "10.0.0.1:80 wrr 10.1.0.1", "rules:3: -a 10.1.0.1:80 is ignored"},
		{"delete a server", service + server + "-a -t 10.0.0.1:80 -r 10.1.0.2:80 -m\n-d -t 10.0.0.1:80 -r 10.1.0.1:80\n", "10.0.0.1:80 wrr 10.1.0.2", ""},
		{"delete a service", service + server + "-D -t 10.0.0.1:80\n-A -t 10.0.0.2:80 -s rr\n", "10.0.0.2:80 rr", ""},
		{"another port by direct routing", service + "-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -g\n", "10.0.0.1:80 wrr 10.1.0.1", ""},
		{"one packet with affinity", "-A -u 10.0.0.1:53 -s rr -o -p 60\n-a -u 10.0.0.1:53 -r 10.1.0.1:53 -g\n", "10.0.0.1:53 rr 10.1.0.1", "rules:1: service vip-10-0-0-1-53-udp: the scheduler flag one-packet is not converted"},
		{"a flag of another scheduler", "-A -t 10.0.0.1:80 -s rr -b sh-port\n" + server, "10.0.0.1:80 rr 10.1.0.1", "rules:1: service vip-10-0-0-1-80-tcp: the scheduler flag port is not converted"},
		{"clear", service + server + "-C\n-A -t 10.0.0.2:80 -s rr\n", "10.0.0.2:80 rr", ""},
		{"a word too many", service + server + "-A -t 10.0.0.2:80 -s rr x\n", "10.0.0.1:80 wrr 10.1.0.1; 10.0.0.2:80 rr", `rules:3: "x" is not understood`},
	} {
		t.Run(c.name, func(t *testing.T) {
			result := Convert("rules", c.text)
			notes := ""
			for _, n := range result.Notes {
				notes += n.String() + "\n"
			}
			expect.Equal(t, summary(result.Services), c.want)
			expect.Contains(t, notes, c.note)
			expect.True(t, c.note != "" || notes == "", "%s", notes)
			expect.Equal(t, result.Refused, 0)
		})
	}
}
