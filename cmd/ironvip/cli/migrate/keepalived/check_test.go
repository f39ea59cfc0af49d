package keepalived

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip/spec"
)

// one converts a virtual_server with one real_server, and returns its service and the notes.
func one(t *testing.T, inServer, inReal string) (spec.Service, string) {
	t.Helper()
	result, notes := convert(t, "virtual_server 10.0.0.1 80 {\n protocol TCP\n"+inServer+"\n real_server 10.1.0.1 80 {\n"+inReal+"\n }\n}\n")
	must.Equal(t, len(result.Services), 1, "%d services: %s", len(result.Services), notes)
	return result.Services[0].Service, notes
}

// Without statements, each type of check has keepalived's defaults; statements replace them.
func TestDefaultsOfChecks(t *testing.T) {
	for _, c := range []struct {
		check, inServer         string
		interval, fast, timeout time.Duration // fast 0: none
		fall                    int
	}{
		{"TCP_CHECK { }", "", time.Minute, time.Second, 5 * time.Second, 2},
		{"SMTP_CHECK { }", "", time.Minute, time.Second, 5 * time.Second, 2},
		{"UDP_CHECK { payload 70\nrequire_reply\n }", "", time.Minute, time.Second, 5 * time.Second, 2},
		{"HTTP_GET { }", "", time.Minute, 3 * time.Second, 5 * time.Second, 2},
		{"SSL_GET { }", "delay_loop 2", 2 * time.Second, 2 * time.Second, 5 * time.Second, 2},
		{"HTTP_GET {\nretry 4\ndelay_before_retry 1\n}", "", time.Minute, time.Second, 5 * time.Second, 5},
		{"HTTP_GET {\nretry 0\n}", "delay_before_retry 2", time.Minute, 0, 5 * time.Second, 1},
		{"TCP_CHECK { }", "delay_loop 10\nconnect_timeout 2\nretry 3", 10 * time.Second, time.Second, 2 * time.Second, 4},
		{"MISC_CHECK { misc_path /bin/true\n }", "", time.Minute, 0, time.Minute, 1},
		{"MISC_CHECK { misc_path /bin/true\n }", "delay_loop 7\nconnect_timeout 2", 7 * time.Second, 0, 7 * time.Second, 1},
		{"MISC_CHECK { misc_path /bin/true\nmisc_timeout 4\nretry 2\n }", "", time.Minute, time.Second, 4 * time.Second, 3},
		{"MISC_CHECK { misc_path /bin/true\nmisc_timeout 0\n }", "delay_loop 7", 7 * time.Second, 0, 7 * time.Second, 1},
	} {
		s, notes := one(t, c.inServer, c.check)
		h := s.Health
		if h == nil || h.Interval == nil {
			t.Errorf("%s: no check: %s", c.check, notes)
			continue
		}
		var fast time.Duration
		if h.FastInterval != nil {
			fast = time.Duration(*h.FastInterval)
		}
		got := fmt.Sprint(time.Duration(*h.Interval), fast, time.Duration(*h.Timeout), *h.Fall, *h.Rise)
		want := fmt.Sprint(c.interval, c.fast, c.timeout, c.fall, 1)
		expect.Equal(t, got, want, "%s with %q: interval, fast interval, timeout, fall, rise", c.check, c.inServer)
	}
}

// A UDP_CHECK needs an answer only with require_reply.
func TestUDPCheck(t *testing.T) {
	for _, c := range []struct{ check, health, note string }{
		{"payload 7069", "none", "UDP_CHECK without require_reply is not converted"},
		{"", "none", "UDP_CHECK without require_reply is not converted"},
		{"require_reply", "default", "UDP_CHECK without payload is not converted"},
		{"payload 7069\nrequire_reply", "udp pi ", ""},
		{"payload 7069\nrequire_reply 70 6F", "udp pi po", ""},
		{"payload 70 1 69\nrequire_reply 706f7", "udp p\x01i po\x07", ""},
		{"payload 7069\nrequire_reply 70XX", "udp pi ", "the mask of require_reply is not converted"},
		{"payload 7069\nrequire_reply 70zz", "udp pi ", `require_reply: "zz" is not hexadecimal`},
		{"payload 7069\nrequire_reply ff", "udp pi ", "require_reply: bytes that are not UTF-8"},
		{"payload ff\nrequire_reply", "default", "payload: bytes that are not UTF-8"},
		{"payload 7069\nrequire_reply\nmin_reply_length 4", "udp pi ", "min_reply_length 4 is not converted"},
		{"payload 7069\nrequire_reply\nmax_reply_length 4", "udp pi ", "max_reply_length 4 is not converted"},
	} {
		s, notes := one(t, "", "UDP_CHECK {\n"+c.check+"\n}")
		got := "default"
		if h := s.Health; h != nil && h.Type == "none" {
			got = h.Type
		} else if h != nil {
			got = h.Type + " " + h.Send + " " + h.Expect
		}
		if got != c.health || !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
			t.Errorf("%q: %q, want %q; notes %q, want %q", c.check, got, c.health, notes, c.note)
		}
	}
}

// keepalived does not check a sorry_server, the service's check does.
func TestSorryServerIsChecked(t *testing.T) {
	const note = "f:3: keepalived does not check a sorry_server"
	if s, notes := one(t, "sorry_server 10.1.0.9 80", "TCP_CHECK { }"); !strings.Contains(notes, note) || len(s.Backends) != 2 || !s.Backends[1].Backup {
		t.Errorf("%+v, notes %s", s, notes)
	}
	if _, notes := one(t, "sorry_server 10.1.0.9 80", ""); notes != "" {
		t.Errorf("a note without a check: %s", notes)
	}
}

// A value that isn't a number is a note, and the default stays.
func TestValuesThatAreNotNumbers(t *testing.T) {
	plain, _ := one(t, "", "TCP_CHECK { }")
	for _, c := range []struct{ inServer, inReal, note string }{
		{"", "weight -1\nTCP_CHECK { }", `weight "-1" is not`},
		{"", "weight 70000\nTCP_CHECK { }", `weight "70000" is not`},
		{"", "weight\nTCP_CHECK { }", `weight "" is not`},
		{"", "uthreshold 1k\nTCP_CHECK { }", `uthreshold "1k" is not`},
		{"", "TCP_CHECK {\nretry x\n}", `retry "x" is not`},
		{"retry x", "TCP_CHECK { }", `retry "x" is not`},
		{"retry 0", "TCP_CHECK { }", `retry "0" is not a number from 1`},
		{"weight 0", "TCP_CHECK { }", `weight "0" is not a number from 1`},
		{"delay_loop 5s", "TCP_CHECK { }", `delay_loop: "5s" is not a number of seconds`},
		{"delay_loop 0", "TCP_CHECK { }", `delay_loop: 0 is no time`},
		{"lb_kind nat", "TCP_CHECK { }", `"nat" is not a forwarding method`},
		{"lb_kind dr", "TCP_CHECK { }", `"dr" is not a forwarding method`},
		{"", "TCP_CHECK {\nconnect_port http\n}", `connect_port "http" is not`},
		{"", "TCP_CHECK {\nconnect_port 70000\n}", `connect_port "70000" is not`},
	} {
		if s, notes := one(t, c.inServer, c.inReal); !strings.Contains(notes, c.note) || !reflect.DeepEqual(s, plain) {
			t.Errorf("%q, %q: notes %q without %q, or not the default: %+v", c.inServer, c.inReal, notes, c.note, s)
		}
	}
	for _, c := range []struct {
		value, note string
		want        time.Duration
	}{{"5m", `persistence_timeout "5m" is not`, 0}, {"0", `persistence_timeout "0" is not`, 0}, {"2678401", `persistence_timeout "2678401" is not`, 0}, {"", "", 6 * time.Minute}, {"300", "", 5 * time.Minute}} {
		s, notes := one(t, "persistence_timeout "+c.value, "")
		var got time.Duration // 0: no affinity
		if s.Affinity != nil {
			got = time.Duration(*s.Affinity.Timeout)
		}
		if got != c.want || !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
			t.Errorf("persistence_timeout %s: %+v, notes %q", c.value, s.Affinity, notes)
		}
	}
	result, notes := convert(t, "virtual_server 10.0.0.1 80 {\n protocol TCP\n real_server 10.1.0.1 http { }\n real_server 10.1.0.2 70000 { }\n}\n")
	if strings.Count(notes, "is not a port: the port of the service is used") != 2 || result.Services[0].Backends[0].Port != 0 || result.Services[0].Backends[1].Port != 0 {
		t.Errorf("%+v, notes %s", result.Services, notes)
	}
}

// Addresses are announced on their own interfaces, others on that of the instance.
func TestInterfacesOfAddresses(t *testing.T) {
	for _, c := range []struct{ block, want string }{
		{"interface eth0\nvirtual_ipaddress {\n10.0.0.1/24\n}", "[eth0]"},
		{"virtual_ipaddress {\n10.0.0.1/24 dev eth1 label eth1:1\n10.0.0.2/24 brd 10.0.0.255 dev eth2\n10.0.0.3\n}\ninterface eth0", "[eth1 eth2 eth0]"},
		{"interface eth0\nvirtual_ipaddress {\n10.0.0.1/24 dev eth1\n}\nvirtual_ipaddress_excluded {\n10.0.0.2 dev eth1\n}", "[eth1]"},
		{"interface eth0\nvirtual_ipaddress {\n10.0.0.1 dev\n}", "[eth0]"},
	} {
		if result, notes := convert(t, "vrrp_instance a {\n"+c.block+"\n}\n"); result.Announce == nil || fmt.Sprint(result.Announce.Interfaces) != c.want {
			t.Errorf("%q: %+v, want %s: %s", c.block, result.Announce, c.want, notes)
		}
	}
}

// An address without a virtual_server floats for programs of the hosts, with the first script as its check.
func TestFloatingAddresses(t *testing.T) {
	const scripts = "vrrp_script haproxy {\n script \"/usr/bin/killall -0 haproxy\"\n interval 2\n fall 3\n rise 2\n weight 2\n}\nvrrp_script plain {\n script /bin/ok\n}\nvrrp_script late {\n script ok\n interval 0.01\n timeout 600\n fall 0\n}\n"
	for _, c := range []struct{ tracked, check, notes string }{
		{"", "", "has no virtual_server and no track_script"},
		{"track_script {\n haproxy\n}", "[/usr/bin/killall -0 haproxy] 2s 2s rise 2 fall 3", "the weight of haproxy is not converted"},
		{"track_script {\n plain weight 5\n haproxy\n}", "[/bin/ok] 1s 1s rise 1 fall 1", "track_script haproxy is not converted: a service has one check"},
		{"track_script {\n gone\n}", "", `there is no vrrp_script "gone" with a script`},
		{"track_script {\n late\n}", "[ok] 100ms 1m rise 1 fall 1", "interval of 10ms is out of bounds: 100ms is used\nf:11: timeout of 10m is out of bounds: 1m is used"},
	} {
		result, notes := convert(t, scripts+"vrrp_instance VI_1 {\n interface eth0\n virtual_ipaddress {\n 10.0.0.9/24\n 10.0.0.9\n 2001:db8::9/64\n }\n"+c.tracked+"\n}\n")
		must.Len(t, result.Services, 2, "%s: services", c.tracked)
		for i, want := range []string{"vi-1 10.0.0.9", "vi-1-2 2001:db8::9"} {
			s := &result.Services[i].Service
			got := ""
			if h := s.Health; h != nil {
				got = fmt.Sprintf("%v %s %s rise %d fall %d", h.Command, h.Interval, h.Timeout, *h.Rise, *h.Fall)
			}
			expect.Equal(t, s.Name+" "+strings.Join(s.VIPs, " "), want)
			expect.Equal(t, got, c.check, "%s: check", c.tracked)
			expect.Equal(t, s.Forward, "host")
			if _, problems := s.Build("static", ""); len(problems) > 0 && !strings.Contains(notes, "absolute path") {
				t.Errorf("%s: %v", c.tracked, problems)
			}
		}
		expect.Contains(t, notes, c.notes)
	}
	result, notes := convert(t, scripts+"vrrp_instance a {\n virtual_ipaddress {\n 10.0.0.1\n }\n track_script {\n plain\n }\n}\nvirtual_server 10.0.0.1 80 {\n protocol TCP\n real_server 10.1.0.1 80 { }\n}\n")
	must.Len(t, result.Services, 1, "services")
	expect.Contains(t, notes, "track_script is not converted for 10.0.0.1")
}

// The priority of one instance is that of the host.
func TestPriority(t *testing.T) {
	for _, c := range []struct {
		priority, note string
		want           int
	}{
		{"", "", 0},
		{"priority 150", "", 150},
		{"priority high", `priority "high" is not a number from 1 to 255: 100 is used`, 0},
	} {
		result, notes := convert(t, "vrrp_instance a {\n virtual_ipaddress {\n 10.0.0.1\n }\n"+c.priority+"\n}\n")
		expect.Equal(t, result.Announce.Priority, c.want, "%s", c.priority)
		expect.Contains(t, notes, c.note)
		expect.Equal(t, strings.Contains(notes, "priority"), c.note != "", "%s", notes)
		expect.Len(t, result.Pools, 0, "pools")
	}
}

// Addresses of several interfaces or priorities get a pool for each, and their services name it.
func TestPoolsOfInstances(t *testing.T) {
	instance := func(name, device, priority string, addrs ...string) string {
		return fmt.Sprintf("vrrp_instance %s {\n interface %s\n priority %s\n virtual_ipaddress {\n %s\n }\n}\n", name, device, priority, strings.Join(addrs, "\n"))
	}
	result, notes := convert(t, instance("a", "eth0", "150", "10.0.0.1", "10.0.0.2 dev eth1")+instance("b", "eth0", "90", "10.0.0.3")+instance("c", "eth0", "150", "10.0.0.4")+
		"virtual_server 10.0.0.3 80 {\n protocol TCP\n real_server 10.1.0.1 80 { }\n}\nvirtual_server 10.9.9.9 80 {\n protocol TCP\n real_server 10.1.0.1 80 { }\n}\n")
	expect.True(t, !strings.Contains(notes, "priority"), "%s", notes)
	expect.NoDiff(t, cmp.Diff([]migrate.Pool{
		{Name: "imported-1", CIDRs: []string{"10.0.0.1/32", "10.0.0.4/32"}, Interfaces: []string{"eth0"}, Priority: 150},
		{Name: "imported-2", CIDRs: []string{"10.0.0.2/32"}, Interfaces: []string{"eth1"}, Priority: 150},
		{Name: "imported-3", CIDRs: []string{"10.0.0.3/32"}, Interfaces: []string{"eth0"}, Priority: 90},
	}, result.Pools))
	pools := map[string]string{}
	for _, s := range result.Services {
		pools[s.VIPs[0]] = s.Pool
	}
	expect.NoDiff(t, cmp.Diff(map[string]string{"10.0.0.1": "imported-1", "10.0.0.2": "imported-2", "10.0.0.3": "imported-3", "10.0.0.4": "imported-1", "10.9.9.9": "imported"}, pools))
}
