// Gets https://NAME/version from ADDRESS, whose certificate is its own authority: what a program in Go sends.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	name, address, file := os.Args[1], os.Args[2], os.Args[3]
	certificate, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(certificate)
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, address)
	}
	client := http.Client{
		Timeout: 20 * time.Second,
		Transport: &http.Transport{
			DialContext:       dial,
			TLSClientConfig:   &tls.Config{RootCAs: authorities},
			ForceAttemptHTTP2: true,
		},
	}
	answer, err := client.Get("https://" + name + "/version")
	if err != nil {
		log.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		log.Fatal(answer.Status, err)
	}
	fmt.Print(string(body))
}
