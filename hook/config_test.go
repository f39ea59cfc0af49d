package hook_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/problemtest"
)

// Every mistake is named by its line and field.
func TestConfigProblems(t *testing.T) {
	for _, tc := range []struct {
		name, toml string
		want       []string
	}{
		{"program", `command = ["/bin/x", "", "a b"]`, nil},
		{"webhook", `url = "http://[::1]:8080/x?y=z"`, nil},
		{"neither", ``, []string{`/nowhere/ironvip.toml:1: hook[0]: has neither a program nor a webhook | add command or url`}},
		{"both", "command = [\"/bin/x\"]\nurl = \"https://a.example\"", []string{`/nowhere/ironvip.toml:5: hook[0].url: a hook has a command or a url`}},
		{"a line", `command = "/bin/x"`, []string{`/nowhere/ironvip.toml:4: hook[0].command: wants a list, has the string "/bin/x"`}},
		{"relative", `command = ["x"]`, []string{`/nowhere/ironvip.toml:4: hook[0].command[0]: "x" is not an absolute path`}},
		{"NUL", `command = ["/bin/x", "a\u0000"]`, []string{`/nowhere/ironvip.toml:4: hook[0].command: has more than 64 words, or one that contains NUL`}},
		{"many words", `command = ["/bin/x"` + strings.Repeat(`, "a"`, 64) + `]`, []string{`/nowhere/ironvip.toml:4: hook[0].command: has more than 64 words`}},
		{"scheme", `url = "ftp://a.example"`, []string{`/nowhere/ironvip.toml:4: hook[0].url: is not the address of a webhook`}},
		{"no host", `url = "https:///x"`, []string{`/nowhere/ironvip.toml:4: hook[0].url: is not the address`}},
		{"password", `url = "https://a:hunter2@a.example"`, []string{`/nowhere/ironvip.toml:4: hook[0].url: is not the address of a webhook | write "https://HOST/PATH", without a password`}},
		{"junk", `url = "https://a b\u0001"`, []string{`/nowhere/ironvip.toml:4: hook[0].url: is not the address`}},
		{"secret of a program", "command = [\"/bin/x\"]\nsecret_file = \"x\"", []string{`/nowhere/ironvip.toml:5: hook[0].secret_file: is for webhooks`}},
		{"authorities of a program", "command = [\"/bin/x\"]\nca_file = \"x\"", []string{`/nowhere/ironvip.toml:5: hook[0].ca_file: is for webhooks`}},
		{"authorities without TLS", "url = \"http://a.example\"\nca_file = \"x\"", []string{`/nowhere/ironvip.toml:5: hook[0].ca_file: is for TLS, which "http://a.example" does not use`}},
		{"capitals without TLS", "url = \"HTTP://a.example\"\nca_file = \"x\"", []string{`/nowhere/ironvip.toml:5: hook[0].ca_file: is for TLS`}},
		{"a key alone", "url = \"https://a.example\"\nca_file = \"x\"\nkey_file = \"x\"", []string{`/nowhere/ironvip.toml:1: hook[0].cert_file: a certificate needs its key`}},
		{"a certificate", "url = \"https://a.example\"\nca_file = \"x\"\nkey_file = \"x\"\ncert_file = \"x\"", nil},
		{"timeout", "url = \"https://a.example\"\ntimeout = \"1h\"", []string{`/nowhere/ironvip.toml:5: hook[0].timeout: 1h is out of bounds | use "100ms" to "5m"`}},
		{"queue", "url = \"https://a.example\"\nqueue = 1", []string{`/nowhere/ironvip.toml:5: hook[0].queue: 1 is out of bounds | use 10 to 10000`}},
		{"services", "url = \"https://a.example\"\nservices = [\"web\", \"a/[\"]", []string{`/nowhere/ironvip.toml:5: hook[0].services[0]: "web" is not a namespace and a name`, `/nowhere/ironvip.toml:5: hook[0].services[1]: "a/[" is not a pattern`}},
		{"objects", "url = \"https://a.example\"\nobjects = [\"\"]", []string{`/nowhere/ironvip.toml:5: hook[0].objects[0]: "" is not a pattern`}},
		{"unknown key", "url = \"https://a.example\"\nurll = 1", []string{`/nowhere/ironvip.toml:5: hook[0].urll: unknown key`}},
		{"name twice", "url = \"https://a.example\"\n[[hook]]\nname = \"pager\"\nevents = [\"vip_anounced\", \"*\", \"*\", \"x_*\"]\nurl = \"https://a.example\"", []string{
			`/nowhere/ironvip.toml:6: hook[1].name: "pager" is the name of the hook at /nowhere/ironvip.toml:1`,
			`/nowhere/ironvip.toml:7: hook[1].events[0]: "vip_anounced" is no kind of event | did you mean "vip_announced"?`,
			`/nowhere/ironvip.toml:7: hook[1].events[2]: "*" is defined twice`,
			`/nowhere/ironvip.toml:7: hook[1].events[3]: "x_*" is no kind of event | docs/hooks.md lists the kinds`,
		}},
		{"no name, no events", "url = \"https://a.example\"\n[[hook]]\nurl = \"https://a.example\"", []string{
			`/nowhere/ironvip.toml:5: hook[1].name: a name is needed`, `/nowhere/ironvip.toml:5: hook[1].events: is required`,
		}},
		{"many", "url = \"https://a.example\"\n" + func() (out string) {
			for i := range 100 {
				out += fmt.Sprintf("[[hook]]\nname = \"h%d\"\nevents = [\"*\"]\nurl = \"https://a.example\"\n", i)
			}
			return out
		}(), []string{`/nowhere/ironvip.toml:1: hook: 101 hooks are more than 100`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, problems := configs.Parse("/nowhere/ironvip.toml", []byte("[[hook]]\nname = \"pager\"\nevents = [\"vip_*\"]\n"+tc.toml+"\n"))
			problemtest.Expect(t, problems, tc.want...)
		})
	}
}

// `ironvip config validate` finds files of TLS that can't be used.
func TestTLSFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, configs.ConfigName)
	authority.New(t).Client(t, "lb1").Write(t, filepath.Join(dir, "cert"), filepath.Join(dir, "key"))
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "text"), []byte("text"), 0o600))
	for keys, want := range map[string]string{
		`ca_file = "cert"` + "\n" + `cert_file = "cert"` + "\n" + `key_file = "key"`: "",
		`ca_file = "away"`: "ironvip.toml:5: hook[0].ca_file: " + filepath.Join(dir, "away") + ": no such file",
		`ca_file = "text"`: "ironvip.toml:5: hook[0].ca_file: " + filepath.Join(dir, "text") + " has no certificate in PEM",
		`cert_file = "cert"` + "\n" + `key_file = "text"`: "ironvip.toml:6: hook[0].key_file: does not fit cert_file",
	} {
		c, problems := configs.Parse(path, []byte("[[hook]]\nname = \"a\"\nevents = [\"*\"]\nurl = \"https://a.example\"\n"+keys+"\n"))
		must.Len(t, problems, 0)
		got := c.CheckFiles()
		if want == "" {
			expect.Len(t, got, 0)
			continue
		}
		must.Len(t, got, 1, "%q", keys)
		expect.Contains(t, got[0].Error(), want)
	}
}

// `ironvip config validate` finds a secret that can't be used.
func TestSecretFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, configs.ConfigName)
	for text, want := range map[string]string{"": "the secret has 0 bytes, fewer than 16", "short\n": "the secret has 5 bytes, fewer than 16", "0123456789abcdef\n": "", "-": "no such file"} {
		secret := filepath.Join(dir, "secret")
		os.Remove(secret)
		if text != "-" {
			must.Succeed(t, os.WriteFile(secret, []byte(text), 0o600))
		}
		c, problems := configs.Parse(path, []byte("[[hook]]\nname = \"a\"\nevents = [\"*\"]\nurl = \"https://a.example\"\nsecret_file = \"secret\"\n"))
		must.Len(t, problems, 0)
		got := c.CheckFiles()
		if want == "" {
			expect.Len(t, got, 0)
			continue
		}
		must.Len(t, got, 1, "%q", text)
		expect.Contains(t, got[0].Error(), want)
		expect.Contains(t, got[0].Error(), "ironvip.toml:5: hook[0].secret_file")
	}
}
