package command

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/internal/tomlfile"
)

// EnvAddr is the environment variable for the agent's address if --addr is not set.
const EnvAddr = "IRONVIP_ADDR"

// The environment variables of --token-file and --ca-file.
const (
	EnvTokenFile = "IRONVIP_TOKEN_FILE"
	EnvCAFile    = "IRONVIP_CA_FILE"
)

// defaultTimeout bounds the wait for a response or for the dataplane.
const defaultTimeout = 30 * time.Second

// DefaultConfig is the default path of the configuration.
const DefaultConfig = "/etc/ironvip"

// Environment is the surroundings of the commands.
type Environment struct {
	Version string // of this binary

	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Now            func() time.Time
}

// App is the state that all commands share: the environment, the printer of their output, and the global flags.
type App struct {
	Environment
	*output.Printer

	Addr              string // --addr, which may be empty
	TokenFile, CAFile string
	Timeout           time.Duration // for an answer and, after a change, until it is applied
	Verbose           bool
}

// New returns the state of one command line, with the default values of the flags.
func New(e Environment) *App {
	return &App{Environment: e, Timeout: defaultTimeout, Printer: &output.Printer{Out: e.Stdout, Err: e.Stderr, Format: output.Table,
		ColorOut: output.ColorWanted(e.Stdout, e.Getenv), ColorErr: output.ColorWanted(e.Stderr, e.Getenv)}}
}

// Run runs the command in args, prints its errors and returns its exit code.
func (a *App) Run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	return a.Report(root.ExecuteContext(ctx))
}

// NamedAddr returns the agent's address from the flags or the environment, or "".
func (a *App) NamedAddr() string { return cmp.Or(a.Addr, a.Getenv(EnvAddr)) }

// Client returns a client of the agent at NamedAddr or the default address.
func (a *App) Client() (*client.Client, error) { return a.ClientWithin(a.Timeout) }

// ClientWithin is Client with another timeout of its answers.
func (a *App) ClientWithin(timeout time.Duration) (*client.Client, error) {
	if a.Timeout <= 0 {
		return nil, &Failure{Code: ExitUsage, Err: fmt.Errorf("invalid --timeout %s: must be positive", a.Timeout), Hint: "use a duration such as 30s"}
	}
	options := client.Options{Timeout: timeout, UserAgent: "ironvip/" + a.Version}
	if err := a.credentials(&options); err != nil {
		return nil, err
	}
	c, err := client.New(a.NamedAddr(), options)
	if err != nil {
		return nil, &Failure{Code: ExitUsage, Err: err, Hint: "--addr and " + EnvAddr + " take unix://PATH, http://HOST:PORT or https://HOST:PORT"}
	}
	if a.Verbose {
		a.Say("agent at %s", c.Addr())
	}
	return c, nil
}

// maxCredential bounds the files of credentials, in bytes.
const maxCredential = 1 << 20

// credentials reads the files with the token and the authorities.
func (a *App) credentials(o *client.Options) error {
	if file := cmp.Or(a.TokenFile, a.Getenv(EnvTokenFile)); file != "" {
		text, problem := tomlfile.ReadFile(file, maxCredential)
		if problem != nil {
			return &Failure{Code: ExitError, Err: fmt.Errorf("--token-file: %w", problem), Hint: problem.Hint}
		}
		if o.Token = strings.TrimSpace(string(text)); o.Token == "" || strings.ContainsAny(o.Token, " \n\r") {
			return &Failure{Code: ExitError, Err: fmt.Errorf("--token-file: %s does not have one token", file), Hint: "write the output of ironvip token create to it"}
		}
	}
	if file := cmp.Or(a.CAFile, a.Getenv(EnvCAFile)); file != "" {
		text, problem := tomlfile.ReadFile(file, maxCredential)
		if problem != nil {
			return &Failure{Code: ExitError, Err: fmt.Errorf("--ca-file: %w", problem), Hint: problem.Hint}
		}
		if o.Authorities = x509.NewCertPool(); !o.Authorities.AppendCertsFromPEM(text) {
			return &Failure{Code: ExitError, Err: fmt.Errorf("--ca-file: %s has no certificate in PEM", file)}
		}
	}
	return nil
}

// Age returns how old t is, or "" without t.
func (a *App) Age(t *time.Time) string {
	if t == nil {
		return ""
	}
	return output.Since(*t, a.Now())
}

// Ago returns how long ago t was, or "" without t.
func (a *App) Ago(t *time.Time) string {
	if t == nil {
		return ""
	}
	return output.Ago(*t, a.Now())
}
