// Package request has what the requests and responses of the API have in common: paths of services,
// backends and addresses, bodies, pages of lists, streams of lines, and the problems of refused writes.
//
// Its input is the parameters and bodies of requests. Its output is their values, or problem
// documents. The package writes no table and knows no route.
package request
