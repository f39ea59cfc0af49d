package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/test/must"
)

// The samples of the converters, as files of the user.
const (
	keepalivedSample = "../../../cmd/ironvip/cli/migrate/keepalived/testdata/keepalived.conf"
	ipvsadmSample    = "../../../cmd/ironvip/cli/migrate/ipvsadm/testdata/rules"
	haproxySample    = "../../../cmd/ironvip/cli/migrate/haproxy/testdata/haproxy.cfg"
	metallbSample    = "../../../cmd/ironvip/cli/migrate/metallb/testdata/metallb.yaml"
	ldirectordSample = "../../../cmd/ironvip/cli/migrate/ldirectord/testdata/ldirectord.cf"
	kubeVIPSample    = "../../../cmd/ironvip/cli/migrate/kubevip/testdata/kube-vip.yaml"
)

func TestImport(t *testing.T) {
	for _, c := range []struct{ program, sample string }{{"keepalived", keepalivedSample}, {"ipvsadm", ipvsadmSample}, {"haproxy", haproxySample}, {"metallb", metallbSample},
		{"ldirectord", ldirectordSample}, {"kube-vip", kubeVIPSample}} {
		t.Run(c.program, func(t *testing.T) {
			got := run(t, Options{}, "import "+c.program+" "+c.sample)
			golden(t, "import_"+c.program+".txt", got.String())
		})
	}
}

// An import writes a valid configuration, except for the parts that its notes name.
func TestImportedFilesAreValid(t *testing.T) {
	for _, c := range []struct{ program, text string }{
		{"keepalived", "virtual_server 10.0.0.200 80 {\n protocol TCP\n delay_loop 5\n lb_kind NAT\n real_server 10.1.0.1 8080 {\n TCP_CHECK { connect_timeout 2 }\n }\n}\n" +
			"virtual_server 10.0.0.200 443 {\n protocol TCP\n lb_algo mh\n lb_kind DR\n real_server 10.1.0.1 443 { weight 2 }\n}\n" +
			"vrrp_instance a {\n interface eth0\n unicast_src_ip 10.0.0.1\n unicast_peer { 10.0.0.2 }\n virtual_ipaddress { 10.0.0.200/24 }\n}\n"},
		{"keepalived", "virtual_server 10.0.0.200 53 {\n protocol UDP\n lb_kind NAT\n real_server 10.1.0.1 53 {\n UDP_CHECK {\n payload 00 70 1f\n require_reply 01 22\n }\n }\n}\n"},
		{"haproxy", "listen a\n mode tcp\n bind 10.0.0.1:80 accept-proxy\n bind 10.0.0.1:443\n server a 10.1.0.1:80\n"},
		{"ipvsadm", "-A -t 10.0.0.1:80 -s wrr -p 300\n-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 2\n-A -u [2001:db8::1]:53 -s rr\n-a -u [2001:db8::1]:53 -r [2001:db8::2]:53 -i -w 1\n"},
		{"haproxy", "defaults\n timeout client 30s\n timeout server 30s\nlisten a\n mode tcp\n bind 10.0.0.1:80\n balance source\n option httpchk GET /\n server a 10.1.0.1:80 check weight 2\n"},
		{"metallb", "kind: IPAddressPool\nmetadata: {name: a}\nspec: {addresses: [192.0.2.0/24]}\n---\nkind: BGPPeer\nmetadata: {name: r}\nspec: {myASN: 65010, peerASN: 65000, peerAddress: 10.0.0.1}\n" +
			"---\nkind: BGPAdvertisement\nspec: {aggregationLength: 24, communities: [\"65010:1\"], peers: [r]}\n"},
		{"ldirectord", "\nfallback=10.1.0.9:80 masq\nvirtual=10.0.0.1:80\n\treal=10.1.0.1->10.1.0.3:8080 masq 5\n\trequest=\"x\"\n\tpersistent=60\n"},
		{"kube-vip", "kind: Pod\nspec: {containers: [{env: [{name: cp_enable, value: \"true\"}, {name: address, value: 10.0.0.1}, {name: vip_arp, value: \"true\"}]}]}\n"},
	} {
		t.Run(c.program, func(t *testing.T) {
			dir := t.TempDir()
			file, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
			must.Succeed(t, os.WriteFile(file, []byte(c.text), 0o644))
			if got := run(t, Options{}, "import "+c.program+" "+file+" --dir "+out); got.code != 0 || got.stdout != "" || strings.Contains(got.stderr, ":1:") {
				t.Fatal(got)
			}
			must.Succeed(t, os.WriteFile(filepath.Join(out, "announce-key"), []byte("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n"), 0o600))
			if got := run(t, Options{}, "config validate "+out); got.code != 0 || strings.Contains(got.stderr, "warning") {
				t.Error(got)
			}
			if got := run(t, Options{}, "import "+c.program+" "+file+" --dir "+out); got.code != command.ExitError || !strings.Contains(got.stderr, "exists: not replaced") {
				t.Error("replaced existing files: ", got)
			}
		})
	}
}

// A text of another program is an answer of its own, also if it is empty or only in part readable.
func TestImportOfAnotherText(t *testing.T) {
	file := filepath.Join(t.TempDir(), "text")
	for _, text := range []string{"", "just words\n", "a: [\n"} {
		must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
		for _, program := range []string{"keepalived", "ipvsadm", "haproxy", "metallb", "ldirectord", "kube-vip"} {
			got := run(t, Options{}, "import "+program+" "+file)
			if got.code != command.ExitDegraded || !strings.Contains(got.stderr, "nothing to convert") {
				t.Errorf("%s of %q: %v", program, text, got)
			}
		}
	}
	must.Succeed(t, os.WriteFile(file, []byte("kind: IPAddressPool\nmetadata: {name: a}\nspec: {addresses: [192.0.2.0/24]}\n---\na: [\n"), 0o600))
	got := run(t, Options{}, "import metallb "+file)
	if got.code != command.ExitDegraded || !strings.Contains(got.stdout, "192.0.2.0/24") || !strings.Contains(got.stderr, "not read from here on") {
		t.Errorf("a broken second document: %v", got)
	}
}

func TestImportOfAMissingFile(t *testing.T) {
	for _, program := range []string{"keepalived", "ipvsadm", "haproxy", "metallb", "ldirectord", "kube-vip"} {
		got := run(t, Options{}, "import "+program+" /nonexistent/file")
		if got.code != command.ExitError || got.stdout != "" || !strings.Contains(got.stderr, "/nonexistent/file") {
			t.Errorf("%s: %v", program, got)
		}
	}
}
