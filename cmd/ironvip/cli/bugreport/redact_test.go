package bugreport

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

const pem = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIJ\nU0VDUkVU\n-----END EC PRIVATE KEY-----"

func TestClean(t *testing.T) {
	r := New()
	for in, want := range map[string]string{
		"token = \"S3CRET\"\n":                            "token = \"REMOVED\"\n",
		`{"token":"S3CRET","name":"web"}`:                 `{"token":"REMOVED","name":"web"}`,
		`msg="{\"password\":\"S3CRET\"}" ok`:              `msg="{\"password\":\"REMOVED\"}" ok`,
		"token_file = \"/etc/ironvip/token\"":             "token_file = \"/etc/ironvip/token\"",
		"password: S3CRET next":                           "password: REMOVED next",
		"client-key-data: S3CRET":                         "client-key-data: REMOVED",
		"Authorization: Bearer S3CRET":                    "Authorization: REMOVED REMOVED",
		"http://user:S3CRET@example.com/x":                "http://REMOVED@example.com/x",
		"ironvip_S3CRETS3CRETS3CRETS3CRET was sent":       "REMOVED was sent",
		"before\n" + pem + "\nafter":                      "before\nREMOVED\nafter",
		"before\n" + pem[:60]:                             "before\nREMOVED",
		"secret = \"\"\"\nS3CRET\nline\"\"\"\nname = 1":   "secret = \"REMOVED\"\nname = 1",
		"X-Consul-Token: S3CRET-1":                        "X-Consul-Token: REMOVED",
		"tokens 3, pool public-v4, 192.0.2.10:80":         "tokens 3, pool public-v4, 192.0.2.10:80",
		`{"items":[{"service":"web","state":"healthy"}]}`: `{"items":[{"service":"web","state":"healthy"}]}`,
	} {
		got := string(r.Clean([]byte(in)))
		if strings.Contains(got, "S3CRET") || strings.Contains(got, "MHcCAQEEIJ") {
			t.Errorf("%q still has the secret: %q", in, got)
		}
		expect.Equal(t, got, want, "%q:\n%q, want\n", in, got)
	}
}

// The secrets in files of the configuration are removed wherever they stand.
func TestSecretsOfFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"consul-token": "correct-horse\n", "keys": "first-shared-secret\nsecond one here\n", "kube": "users:\n- token: kube-s3cret\n"} {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	r := New()
	r.AddConfig(filepath.Join(dir, "ironvip.toml"), []byte("[consul]\ntoken_file = \""+dir+"/consul-token\"\n[announce]\nkey_file = \"keys\"\n[[source]]\nkubeconfig = '"+dir+"/kube'\npeer = { address = \"a\", password_file = \"none\" }\n"))
	got := string(r.Clean([]byte("it sent correct-horse, first-shared-secret, second one here and kube-s3cret to web")))
	expect.Equal(t, got, "it sent REMOVED, REMOVED, REMOVED and REMOVED to web", "%q, known %q", got, r.known)
}
