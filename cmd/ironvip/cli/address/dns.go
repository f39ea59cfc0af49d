package address

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
)

func (a *app) dnsListCommand() *cobra.Command {
	return command.List(a.App, "list the DNS names of services", `Lists the names that services have or want, with their VIPs. If several services want one name, the
service with the oldest lease has it, and STATE names that service. After a restart, such a name is
held for the service that had it, with SERVFAIL until every source has been read.`, (*client.Client).DNSNames, a.dnsListView)
}

func (a *app) dnsListView(list v1.DNSNameList) output.View {
	grid := output.NewGrid("NAME", "KIND", "SERVICE", "ADDRESSES", "STATE", "+SINCE")
	for _, n := range list.Items {
		grid.Add(n.Name, n.Kind, n.Service, render.CommaList(n.Addresses), nameState(n), a.Age(n.Since))
	}
	empty := "no names: no service"
	if len(list.Listen) == 0 {
		empty = "no names: dns.listen is empty"
	}
	view := output.List(list, grid, empty)
	names := output.Texts(list.Items, func(n v1.DNSName) string { return n.Name })
	view.Names = slices.Compact(names) // sorted, once for all services that want it
	return view
}

func nameState(n v1.DNSName) output.Cell {
	switch {
	case n.State == v1.NameUndecided && n.Winner != "":
		return output.Cell{Text: "held for " + n.Winner, Style: output.Caution}
	case n.State == v1.NameUndecided:
		return output.Cell{Text: "undecided", Style: output.Caution}
	case n.Winner != "":
		return output.Cell{Text: "taken by " + n.Winner, Style: output.Caution}
	case n.State == v1.NameConflict:
		return output.Cell{Text: "reserved", Style: output.Caution}
	case len(n.Addresses) == 0:
		return output.Cell{Text: "no address yet", Style: output.Caution}
	}
	return output.Cell{Text: "answered", Style: output.Good}
}

func (a *app) dnsQueryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "query NAME [TYPE]",
		Short: "show the answer to a DNS query and why it is that",
		Long: `Shows the agent's answer to a query for NAME, and why. TYPE is A (the default), AAAA, SRV, PTR, TXT,
SOA, NS or ANY. NAME can be an address, for PTR. Use dig to test the listener.`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.Complete(dnsNameThenType),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			qtype := ""
			if len(args) == 2 {
				qtype = strings.ToUpper(args[1])
			}
			answer, err := c.DNSQuery(ctx, args[0], qtype)
			if err != nil {
				return err
			}
			return a.Show(output.View{Data: answer, Names: answers(answer), Text: func(p *output.Printer) string { return answerText(p, answer) }})
		}),
	}
}

// answers returns the data of the records that answer a query.
func answers(d v1.DNSAnswer) []string {
	return output.Texts(d.Answer, func(r v1.DNSRecord) string { return r.Data })
}

func answerText(p *output.Printer, d v1.DNSAnswer) string {
	var b strings.Builder
	style := output.Good
	if d.RCode != "NOERROR" || len(d.Answer) == 0 {
		style = output.Caution
	}
	fmt.Fprintf(&b, "%s %s: %s, %s.\n", output.Clean(d.Name), output.Clean(d.Type), p.Paint(d.RCode, style), output.Clean(d.Why))
	grid := output.Grid{Indent: "  ", Header: []string{"SECTION", "NAME", "TTL", "TYPE", "DATA"}}
	for _, section := range []struct {
		name    string
		records []v1.DNSRecord
	}{{"answer", d.Answer}, {"authority", d.Authority}, {"additional", d.Additional}} {
		for _, r := range section.records {
			grid.Add(section.name, r.Name, strconv.Itoa(int(r.TTL)), r.Type, r.Data)
		}
	}
	if len(d.Answer)+len(d.Authority)+len(d.Additional) > 0 {
		b.WriteString(grid.Text(p))
	}
	wants := "wants this name"
	if d.Service != "" {
		wants += ", too"
	}
	for _, n := range d.Conflicts {
		fmt.Fprintf(&b, "%s %s: %s.\n", n.Service, wants, nameState(n).Text)
	}
	return b.String()
}

// queryTypes are the types of queries that have records.
var queryTypes = []cobra.Completion{"A", "AAAA", "SRV", "PTR", "TXT", "SOA", "NS", "ANY"}

// dnsNameThenType proposes names of services, and then the types of queries.
func dnsNameThenType(ctx context.Context, c *client.Client, args []string) (out []cobra.Completion, err error) {
	switch len(args) {
	case 0:
		list, err := c.DNSNames(ctx)
		for _, n := range list.Items {
			out = append(out, cobra.CompletionWithDesc(n.Name, n.Service))
		}
		return slices.Compact(out), err
	case 1:
		return queryTypes, nil
	}
	return nil, nil
}
