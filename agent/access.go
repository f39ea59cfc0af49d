package agent

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/tokens"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/tomlfile"
)

// certificateWarning is how long before its end a certificate is worth a warning.
const certificateWarning = 14 * 24 * time.Hour

// accessControl is who may use the API, as the configuration and the tokens say.
type accessControl struct {
	log          *slog.Logger
	tokens       *tokens.Tokens
	policy       atomic.Pointer[access.Policy]
	missing      atomic.Pointer[[]string] // users and groups of api.role that this host does not have
	certificates *server.Certificates     // nil: no TLS
	owners       access.Owners            // since open; a changed socket waits for a restart
}

func newAccessControl(known *tokens.Tokens, log *slog.Logger) *accessControl {
	c := &accessControl{log: log, tokens: known}
	c.policy.Store(new(access.Policy)) // nobody may do anything before the configuration says who
	c.missing.Store(new([]string))
	return c
}

// open reads the certificates and takes over the rules. The API's listeners are open.
func (c *accessControl) open(cfg *configs.Config) (err error) {
	if cfg.API.CertFile != "" {
		var files server.CertificateFiles
		for _, f := range []struct {
			path string
			into *string
		}{{cfg.API.CertFile, &files.Cert}, {cfg.API.KeyFile, &files.Key}, {cfg.API.ClientCAFile, &files.ClientCA}} {
			if f.path != "" {
				if *f.into, err = tomlfile.ResolvePath(f.path); err != nil {
					return err
				}
			}
		}
		c.certificates = server.LoadCertificates(files)
		if _, failed := c.certificates.State(); failed != nil { // traffic does not depend on the API
			c.log.Error("the API has no certificate: TLS handshakes fail until the files are correct", "err", failed)
		}
	}
	c.owners = access.Owners{UID: uint32(os.Getuid()), SocketGID: -1}
	if info, err := os.Stat(cfg.API.Socket); err == nil {
		if stat, is := info.Sys().(*syscall.Stat_t); is {
			c.owners.SocketGID = int64(stat.Gid)
		}
	}
	c.reload(cfg)
	return nil
}

// reload takes over the rules of a configuration.
func (c *accessControl) reload(cfg *configs.Config) {
	policy, missing := access.NewPolicy(c.owners, cfg.API.Roles)
	policy.Tokens = c.tokens.Caller
	policy.InsecureLoopback, policy.PublicMetrics = cfg.API.InsecureLoopback, cfg.API.PublicMetrics
	for _, name := range missing {
		c.log.Warn("a rule of api.role has no effect: this host has no such name", "name", name)
	}
	c.missing.Store(&missing)
	c.policy.Store(policy)
}

// certificatesOf returns the certificates of a listener; nil: it has none.
func (c *accessControl) certificatesOf(l net.Listener) *server.Certificates {
	if l.Addr().Network() == "unix" {
		return nil
	}
	return c.certificates
}

// checks returns the line of `ironvip status`, if something is wrong.
func (c *accessControl) checks(now time.Time) []v1.Check {
	warn := func(message, hint string) v1.Check {
		return v1.Check{Name: "access", Level: v1.LevelWarn, Message: message, Hint: hint}
	}
	var out []v1.Check
	if missing := *c.missing.Load(); len(missing) > 0 {
		out = append(out, warn("api.role names what this host does not have: "+strings.Join(missing, ", "), "create it and run ironvip reload, or remove the rule"))
	}
	if c.certificates == nil {
		return out
	}
	expires, failed := c.certificates.State()
	switch left := expires.Sub(now); {
	case failed != nil && expires.IsZero():
		check := warn("TLS handshakes fail: "+failed.Error(), "correct the files; they are read again by themselves")
		check.Level = v1.LevelFail
		out = append(out, check)
	case failed != nil:
		out = append(out, warn("the certificate on disk is not used: "+failed.Error(), "correct the files; they are read again by themselves"))
	case left <= 0:
		check := warn("the certificate of the API expired at "+expires.UTC().Format(time.RFC3339), "replace api.cert_file and api.key_file")
		check.Level = v1.LevelFail
		out = append(out, check)
	case left < certificateWarning:
		out = append(out, warn(fmt.Sprintf("the certificate of the API expires in %d days, at %s", int(left.Hours()/24), expires.UTC().Format(time.RFC3339)), "replace api.cert_file and api.key_file"))
	}
	return out
}
