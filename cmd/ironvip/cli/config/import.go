package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/haproxy"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/ipvsadm"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/keepalived"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/metallb"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/vip/spec"
)

// maxImport bounds the text that is converted, in bytes.
const maxImport = 64 << 20

func (a *app) importCommands() *cobra.Command {
	return command.Group("import", "convert the configuration of another load balancer",
		a.importCommand("keepalived", "keepalived.conf",
			"Converts virtual_server blocks, the checks of their real servers, and the addresses of\nvrrp_instance blocks.", keepalived.Convert),
		a.importCommand("ipvsadm", "ipvsadm.rules",
			"Converts what \"ipvsadm -Sn\" prints; FILE may be \"-\" for stdin.", a.textImport(ipvsadm.Convert)),
		a.importCommand("haproxy", "haproxy.cfg",
			"Converts listen sections, and frontend sections with their default_backend, in mode tcp.", a.textImport(haproxy.Convert)),
		a.importCommand("metallb", "metallb.yaml",
			"Converts IPAddressPool, L2Advertisement, BGPAdvertisement, BGPPeer, BFDProfile and Community, as\n\"kubectl -n metallb-system get ipaddresspools,l2advertisements,bgpadvertisements,bgppeers,bfdprofiles,communities -o yaml\"\nprints them; FILE may be \"-\" for stdin.", a.textImport(metallb.Convert)),
	)
}

// importCommand returns the command that converts one kind of file.
func (a *app) importCommand(program, example, long string, convert func(name string) migrate.Result) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault), // files of any name
		Use:               program + " FILE",
		Short:             "convert a configuration of " + program + " to TOML; needs no agent",
		Long: long + `
It prints ironvip.toml and a file of services.d, or writes them to a new directory. On stderr, it
lists with file and line what has no equivalent. The exit code is 3 if "config validate" would refuse
the result: the notes have the lines that cause it.`,
		Example: fmt.Sprintf("  ironvip import %s %s\n  ironvip import %[1]s %[2]s --dir ./converted && ironvip config validate ./converted", program, example),
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&dir, "dir", "", "write the files to this directory instead of stdout; existing files are not replaced")
	command.Must(cmd.MarkFlagDirname("dir"))
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		result := convert(args[0])
		if len(result.Services) == 0 && len(result.Notes) == 1 && result.Notes[0].Line == 0 {
			return errors.New(result.Notes[0].String()) // the file was not read
		}
		made, err := newImported(program, args[0], &result)
		if err != nil {
			return err
		}
		_, problems := configs.Parse(configs.ConfigName, []byte(made.Config))
		for _, p := range problems {
			result.Refused++
			result.Note(migrate.Place{File: args[0]}, "%s", p.Error())
		}
		for _, n := range result.Notes {
			made.Notes = append(made.Notes, n.String())
		}
		if dir != "" {
			if err := made.write(dir); err != nil {
				return err
			}
		} else if err := a.Show(made.view()); err != nil {
			return err
		}
		for _, n := range made.Notes {
			a.Say("%s", n)
		}
		a.Say("%s, %s", output.Plural(len(result.Services), "service"), output.Plural(len(made.Notes), "note"))
		return command.ExitIf(result.Refused > 0, command.ExitDegraded)
	}
	return cmd
}

// textImport reads the file that a converter of texts converts.
func (a *app) textImport(convert func(name, text string) migrate.Result) func(string) migrate.Result {
	return func(file string) (result migrate.Result) {
		text, name, problem := a.ReadInput(file, maxImport)
		if problem != nil {
			result.Note(migrate.Place{File: name}, "not read: %s", problem.Message)
			return result
		}
		return convert(name, string(text))
	}
}

// imported is what an import made, as texts and for -o json.
type imported struct {
	Config   string   `json:"config"`   // ironvip.toml
	Services string   `json:"services"` // services.d/PROGRAM.toml; "": none
	Notes    []string `json:"notes"`    // "FILE:LINE: text"

	file string // of the services, below the directory
}

func newImported(program, name string, result *migrate.Result) (*imported, error) {
	m := &imported{file: filepath.Join("services.d", program+".toml"), Notes: []string{}}
	var services []spec.Service
	for _, s := range result.Services {
		services = append(services, s.Service)
	}
	blocks, err := output.TOMLBlocks("service", services)
	if err != nil {
		return nil, err
	}
	config, err := importedConfig(result)
	if err != nil {
		return nil, err
	}
	head := fmt.Sprintf("# Converted from %s.\n\n", name)
	if m.Config = head + config; blocks != "" {
		m.Services = head + blocks
	}
	return m, nil
}

// importedConfig returns the text of ironvip.toml.
func importedConfig(result *migrate.Result) (string, error) {
	pools := result.Pools
	if len(result.Services) > 0 {
		cidrs := output.Texts(result.Addresses, func(at netip.Addr) string { return netip.PrefixFrom(at, at.BitLen()).String() })
		pools = append(pools, migrate.Pool{Name: migrate.PoolName, CIDRs: append([]string{}, cidrs...)})
	}
	var parts []string
	add := func(text string, err error) error {
		if text != "" {
			parts = append(parts, text)
		}
		return err
	}
	err := add(output.TOMLBlocks("pool", pools))
	if announce := result.Announce; announce != nil {
		err = cmp.Or(err, add(announceTable(announce, len(result.Pools) == 0), nil), add(output.TOMLBlocks("announce.bgp", announce.Routers)))
	}
	err = cmp.Or(err, add(output.TOMLBlocks("hook", result.Hooks)))
	return strings.Join(parts, "\n"), err
}

// announceTable returns the table [announce], with its mode if the pools have none of their own.
func announceTable(announce *migrate.Announce, mode bool) string {
	var b strings.Builder
	b.WriteString("[announce]\n")
	if mode {
		b.WriteString("mode = \"l2\"\n")
	}
	if len(announce.Interfaces) > 0 {
		fmt.Fprintf(&b, "interfaces = [%s]\n", quoted(announce.Interfaces))
	}
	if announce.Priority > 0 {
		fmt.Fprintf(&b, "priority = %d\n", announce.Priority)
	}
	if len(announce.Peers) > 0 {
		fmt.Fprintf(&b, "peers = [%s]\n", quoted(output.Texts(announce.Peers, netip.Addr.String)))
		b.WriteString("key_file = \"announce-key\"     # head -c 32 /dev/urandom | base64; the same on all hosts\n")
	}
	return b.String()
}

func quoted(words []string) string { return strings.Join(output.Texts(words, strconv.Quote), ", ") }

// view shows both files as one text, each after a comment with its name.
func (m *imported) view() output.View {
	return output.View{Data: m, Text: func(*output.Printer) string {
		text := "# ---- ironvip.toml\n" + m.Config
		if m.Services != "" {
			text += fmt.Sprintf("\n# ---- %s\n%s", m.file, m.Services)
		}
		return text
	}}
}

// write creates the files in a directory.
func (m *imported) write(dir string) error {
	for _, f := range []struct{ name, text string }{{"ironvip.toml", m.Config}, {m.file, m.Services}} {
		if f.text == "" {
			continue
		}
		path := filepath.Join(dir, f.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s exists: not replaced", path)
		}
		if err != nil {
			return err
		}
		_, err = file.WriteString(f.text)
		if err := cmp.Or(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}
