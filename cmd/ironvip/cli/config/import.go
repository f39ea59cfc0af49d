package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/haproxy"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/ipvsadm"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/keepalived"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/kubevip"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/ldirectord"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/metallb"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/ipvs/dataplane"
	"github.com/ironvip/ironvip/vip/spec"
)

// maxImport bounds the text that is converted, in bytes.
const maxImport = 64 << 20

func (a *app) importCommands() *cobra.Command {
	return command.Group("import", "convert the configuration of another load balancer",
		a.importCommand("keepalived", " FILE",
			"Converts virtual_server blocks, the checks of their real servers, and the addresses of\nvrrp_instance blocks.", keepalived.Convert),
		a.importCommand("ipvs", "",
			"Converts the services that other programs have in this host's IPVS; ironvip's own are left out. Run it as root.", kernelImport),
		a.importCommand("ipvsadm", " FILE",
			"Converts what \"ipvsadm -Sn\" prints; FILE may be \"-\" for stdin.", a.textImport(ipvsadm.Convert)),
		a.importCommand("ldirectord", " FILE",
			"Converts virtual sections and their checks; FILE may be \"-\" for stdin.", a.textImport(ldirectord.Convert)),
		a.importCommand("haproxy", " FILE",
			"Converts listen sections, and frontend sections with their default_backend, in mode tcp.", a.textImport(haproxy.Convert)),
		a.importCommand("metallb", " FILE",
			"Converts IPAddressPool, L2Advertisement, BGPAdvertisement, BGPPeer, BFDProfile and Community, as\n\"kubectl -n metallb-system get ipaddresspools,l2advertisements,bgpadvertisements,bgppeers,bfdprofiles,communities -o yaml\"\nprints them; FILE may be \"-\" for stdin.", a.textImport(metallb.Convert)),
		a.importCommand("kube-vip", " FILE",
			"Converts the variables of kube-vip's static pod or DaemonSet, and the ConfigMap \"kubevip\" of its cloud provider, as\n"+
				"\"kubectl -n kube-system get daemonset/kube-vip-ds configmap/kubevip -o yaml\" prints them; FILE may be \"-\" for stdin.", a.textImport(kubevip.Convert)),
	)
}

// importCommand returns the command that converts one kind of file, or without a file what is in the kernel.
func (a *app) importCommand(program, file, long string, convert func(file string) (migrate.Result, error)) *cobra.Command {
	var dir string
	args := cobra.ExactArgs(1)
	if file == "" {
		args = cobra.NoArgs
	}
	cmd := &cobra.Command{
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault), // files of any name
		Use:               program + file,
		Short:             "convert a configuration of " + program + " to TOML; needs no agent",
		Long: long + `

The result is ironvip.toml and a file of services.d. On stderr, the command lists with file and line
what has no equivalent. The exit code is 3 if "config validate" would refuse the result, or nothing
is in it: the notes have the cause.`,
		Args: args,
	}
	cmd.Flags().StringVar(&dir, "dir", "", "write the files to this directory instead of stdout; existing files are not replaced")
	command.Must(cmd.MarkFlagDirname("dir"))
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		from := command.First(args, "the services of the kernel")
		result, err := convert(from)
		if err != nil {
			return err
		}
		made, err := newImported(program, from, &result)
		if err != nil {
			return err
		}
		_, problems := configs.Parse(configs.ConfigName, []byte(made.Config))
		for _, p := range problems {
			result.Refused++
			result.Note(migrate.Place{File: from}, "%s", p.Error())
		}
		if result.Empty() {
			result.Refused++
			result.Note(migrate.Place{File: from}, "nothing to convert")
		}
		if result.LAN() {
			result.Note(migrate.Place{File: from}, "list the other hosts in announce.peers, and add announce.key_file: without them, each host announces all VIPs. Hosts of a fleet know each other")
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
func (a *app) textImport(convert func(name, text string) migrate.Result) func(string) (migrate.Result, error) {
	return func(file string) (migrate.Result, error) {
		text, name, problem := a.ReadInput(file, maxImport)
		if problem != nil {
			return migrate.Result{}, fmt.Errorf("%s: not read: %s", name, problem.Message)
		}
		return convert(name, string(text)), nil
	}
}

// kernelImport converts what others have in IPVS, beside the dataplane of this host's configuration.
func kernelImport(string) (migrate.Result, error) {
	device := configs.DefaultDevice
	c, problems := configs.Load(command.DefaultConfig)
	if _, err := os.Stat(command.DefaultConfig); c == nil && !errors.Is(err, fs.ErrNotExist) {
		return migrate.Result{}, fmt.Errorf("the configuration of this host says which services are ironvip's own, and is not valid: %w", problems[0])
	} else if c != nil {
		device = c.Dataplane.Device
	}
	commands, err := dataplane.Foreign(context.Background(), device)
	return ipvsadm.ConvertCommands(commands), err
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
	if slices.ContainsFunc(result.Services, func(s migrate.Service) bool { return s.Pool == migrate.PoolName }) {
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
		err = cmp.Or(err, add(announceTable(announce), nil), add(output.TOMLBlocks("announce.bgp", announce.Routers)))
	}
	err = cmp.Or(err, add(output.TOMLBlocks("hook", result.Hooks)))
	return strings.Join(parts, "\n"), err
}

// announceTable returns the table [announce].
func announceTable(announce *migrate.Announce) string {
	var b strings.Builder
	b.WriteString("[announce]\n")
	if announce.Mode != "" {
		fmt.Fprintf(&b, "mode = %q\n", announce.Mode)
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
