package client

import (
	"context"
	"net/url"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// DNSNames lists the DNS names of services.
func (c *Client) DNSNames(ctx context.Context) (v1.DNSNameList, error) {
	return fetchAll(ctx, c, call{path: v1.PathDNSNames, query: largePages()}, func(l *v1.DNSNameList) (*[]v1.DNSName, *string) { return &l.Items, &l.Next })
}

// DNSQuery returns the answer to a DNS query, and why it is that. The type is a word such as "A" or
// "SRV"; "" is A.
func (c *Client) DNSQuery(ctx context.Context, name, qtype string) (v1.DNSAnswer, error) {
	query := url.Values{"name": {name}}
	if qtype != "" {
		query.Set("type", qtype)
	}
	return fetch[v1.DNSAnswer](ctx, c, call{path: v1.PathDNSQuery, query: query})
}
