package http

import (
	"net/url"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/tlsfile"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip/spec"
)

// Type is the type of an HTTP source in configuration and status.
const Type = "http"

// DefaultInterval is the default time between two requests.
const DefaultInterval = 10 * time.Second

// Config is a [[source]] of type http.
type Config struct {
	URL       string `toml:"url"`
	TokenFile string `toml:"token_file"` // of a bearer token; read for each request
	tlsfile.Client
	Interval spec.Duration `toml:"interval" values:"1s..1h"`
	// Pool and ServiceNamespace are defaults for services without these keys.
	Pool             string `toml:"pool"`
	ServiceNamespace string `toml:"service_namespace"`
	// ShrinkGuard is how long a shrink guard holds back a large removal; 0: no guard.
	ShrinkGuard spec.Duration `toml:"shrink_guard" values:"0s..24h"`
}

// NewConfig returns the default settings.
func NewConfig() *Config {
	return &Config{Interval: spec.Duration(DefaultInterval), ShrinkGuard: spec.Duration(sources.DefaultShrinkGuard)}
}

// Check implements sources.Config.
func (c *Config) Check(b *sources.Block) {
	const hint = `write url = "https://HOST/PATH", without a password: a token goes into token_file`
	switch at, err := url.Parse(c.URL); {
	case c.URL == "":
		b.Bad("url", hint, "an http source needs the address of its services")
	case err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" || at.User != nil || at.Fragment != "":
		b.Bad("url", hint, "is not the address of a document")
	default:
		at.Scheme = strings.ToLower(at.Scheme)
		c.URL = at.String()
		c.Client.Check(b.Checker, c.URL, "write the url as https://HOST/PATH")
	}
	b.File("token_file", &c.TokenFile)
	b.CheckPool(c.Pool)
	if c.ServiceNamespace != "" {
		b.Label("service_namespace", c.ServiceNamespace)
	}
}

// Files implements sources.FileNamer.
func (c *Config) Files() []tomlfile.NamedFile {
	return append(c.Client.Files(), tomlfile.NamedFile{Key: "token_file", Path: c.TokenFile})
}

// NewSource implements sources.Config.
func (c *Config) NewSource(d sources.Deps) (sources.Source, error) {
	return d.Cache(New(Options{Config: *c, Name: d.Name, Version: d.Version, Pools: d.Pools, Prior: d.Prior})), nil
}
