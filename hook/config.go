package hook

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/tlsfile"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Config is a [[hook]] of ironvip.toml: a program or a webhook, and the events that it gets.
type Config struct {
	Name       string        `toml:"name"`
	Events     []string      `toml:"events"`                     // kinds, as patterns of path.Match
	Services   []string      `toml:"services"`                   // NAMESPACE/NAME, as patterns; empty: all
	Objects    []string      `toml:"objects"`                    // patterns; empty: all
	Command    []string      `toml:"command"`                    // a program and its arguments, or
	URL        string        `toml:"url"`                        // a webhook
	SecretFile string        `toml:"secret_file"`                // the key of the webhook's signatures
	CAFile     string        `toml:"ca_file"`                    // the authorities of the webhook's certificate, in PEM; "": the host's
	CertFile   string        `toml:"cert_file"`                  // the certificate of the agent there, in PEM; "": none
	KeyFile    string        `toml:"key_file"`                   // its key
	Timeout    spec.Duration `toml:"timeout" values:"100ms..5m"` // of a run or a request
	Queue      int           `toml:"queue" values:"10..10000"`   // the most events that wait
}

// Bounds of a hook.
const (
	MaxHooks       = 100
	maxWords       = 64
	maxSecret      = 4 << 10 // bytes
	minSecret      = 16
	DefaultTimeout = 10 * time.Second
	DefaultQueue   = 1000
	maxQueue       = 10000
)

// Defaults implements strict.Defaulter.
func (c *Config) Defaults() {
	c.Timeout, c.Queue = spec.Duration(DefaultTimeout), DefaultQueue
}

// Check validates the hooks of a document, and makes the paths of their secrets absolute.
func Check(doc *tomlfile.Checker, hooks []Config) {
	if len(hooks) > MaxHooks {
		doc.Bad("hook", "give a hook several patterns of events", "%d hooks are more than %d", len(hooks), MaxHooks)
	}
	for i := range hooks {
		hooks[i].check(doc.In(strict.Index("hook", i)))
	}
}

func (c *Config) check(t *tomlfile.Checker) {
	t.Label("name", c.Name)
	if by, taken := t.Claim("hook " + c.Name); taken {
		t.Bad("name", "choose another name", "%s is the name of the hook at %s", strict.Quote(c.Name), by)
	}
	if len(c.Events) == 0 {
		t.Bad("events", `write kinds of events: ["vip_*", "service_down"]`, "is required")
	}
	t.List("events", c.Events, func(key, pattern string) {
		if !slices.ContainsFunc(event.Kinds, func(k event.Kind) bool { return matches([]string{pattern}, k.Name) }) {
			t.Bad(key, kindHint(pattern), "%s is no kind of event", strict.Quote(pattern))
		}
	})
	isPattern := func(key, pattern string) {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			t.Bad(key, `use "*" and "?" for any characters`, "%s is not a pattern", strict.Quote(pattern))
		}
	}
	t.List("services", c.Services, func(key, pattern string) {
		if isPattern(key, pattern); strings.Count(pattern, "/") != 1 {
			t.Bad(key, `write "shop/web", or "shop/*" for a namespace`, "%s is not a namespace and a name", strict.Quote(pattern))
		}
	})
	t.List("objects", c.Objects, isPattern)
	at, err := url.Parse(c.URL)
	switch {
	case len(c.Command) == 0 && c.URL == "":
		t.Bad("", "add command or url", "has neither a program nor a webhook")
	case len(c.Command) > 0 && c.URL != "":
		t.Bad("url", "make it another [[hook]]", "a hook has a command or a url")
	case c.URL != "":
		if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" || at.User != nil || at.Fragment != "" {
			t.Bad("url", `write "https://HOST/PATH", without a password`, "is not the address of a webhook")
		}
	case len(c.Command) > maxWords || slices.ContainsFunc(c.Command, func(word string) bool { return strings.Contains(word, "\x00") }):
		t.Bad("command", "", "has more than %d words, or one that contains NUL", maxWords)
	default:
		t.Absolute("command[0]", c.Command[0])
	}
	for _, f := range []struct {
		key  string
		path *string
	}{{"secret_file", &c.SecretFile}, {"ca_file", &c.CAFile}, {"cert_file", &c.CertFile}, {"key_file", &c.KeyFile}} {
		switch t.File(f.key, f.path); {
		case *f.path == "":
		case c.URL == "":
			t.Bad(f.key, "remove it", "is for webhooks, and this hook is a program")
		case f.path != &c.SecretFile && err == nil && at.Scheme == "http":
			t.Bad(f.key, "write the url as https://HOST/PATH", "is for TLS, which %s does not use", strict.Quote(c.URL))
		}
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		t.Bad("cert_file", "write cert_file and key_file", "a certificate needs its key, and a key its certificate")
	}
}

func (c *Config) tls() tlsfile.Client {
	return tlsfile.Client{CA: c.CAFile, Cert: c.CertFile, Key: c.KeyFile}
}

// kindHint returns a hint for a pattern that no kind matches.
func kindHint(pattern string) string {
	names := make([]string, len(event.Kinds))
	for i, k := range event.Kinds {
		names[i] = k.Name
	}
	if near := strict.Nearest(pattern, names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "docs/hooks.md lists the kinds"
}

// Files returns the files that the keys name.
func (c *Config) Files() []tomlfile.NamedFile {
	return append(c.tls().Files(), tomlfile.NamedFile{Key: "secret_file", Path: c.SecretFile, Check: func(path string) *vip.Problem {
		if _, err := readSecret(path); err != nil {
			return &vip.Problem{Code: vip.CodeInvalid, Message: err.Error(), Hint: "write a secret: head -c 32 /dev/urandom | base64"}
		}
		return nil
	}})
}

// readSecret reads the secret in a file, without the end of its line.
func readSecret(file string) ([]byte, error) {
	file, err := tomlfile.ResolvePath(file)
	if err != nil {
		return nil, err
	}
	text, problem := tomlfile.ReadFile(file, maxSecret)
	if problem != nil {
		return nil, problem
	}
	secret := []byte(strings.TrimRight(string(text), "\r\n"))
	if len(secret) < minSecret {
		return nil, fmt.Errorf("%s: the secret has %d bytes, fewer than %d", file, len(secret), minSecret)
	}
	return secret, nil
}

// wants reports whether the hook gets an event. An event that names no service or no object, such as one that counts
// several, has any.
func (c *Config) wants(e *event.Event) bool {
	service := e.Service
	if !strings.Contains(service, "/") {
		service = vip.DefaultNamespace + "/" + service
	}
	return matches(c.Events, e.Kind) &&
		(e.Service == "" || len(c.Services) == 0 || matches(c.Services, service)) &&
		(e.Object == "" || len(c.Objects) == 0 || matches(c.Objects, e.Object))
}

func matches(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		is, _ := path.Match(p, text)
		return is
	})
}
